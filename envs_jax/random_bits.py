"""Random bits for environments that need many of them."""

import jax
import jax.numpy as jnp

from envs_jax.environment import Key


def random_bits(key: Key, count: int) -> jax.Array:
    """Fair bits, int32 [count]; each random word gives 32 of them."""
    words = jax.random.bits(key, (-(-count // 32), 1), jnp.uint32)
    single = words >> jnp.arange(32, dtype=jnp.uint32)[None] & 1
    return single.reshape(-1)[:count].astype(jnp.int32)
