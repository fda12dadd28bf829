"""Random order of many numbers without sorting them."""

import jax
import jax.numpy as jnp

from podracer.kernels.switch import is_on

SORTED = 4096  # fewer numbers than this are put in random order by sorting
ROUNDS = 8  # of mixing


def permutation(key: jax.Array, size: int) -> jax.Array:
    """`jax.random.permutation` of 0 to size - 1, int32 [size]; another one for the same key.

    Sorting tens of thousands of random numbers takes a CPU a third of PPO's time. From
    `SORTED` on, the order is that of a random bijection of 0 to 2^k - 1, less the numbers that
    are too large: bijective shuffling (Mitchell et al. 2021, arXiv:2106.06161).
    """
    if size < SORTED or not is_on("shuffling"):
        return jax.random.permutation(key, size)
    bits = (size - 1).bit_length()
    mask = jnp.uint32(2**bits - 1)
    numbers = jnp.arange(2**bits, dtype=jnp.uint32)
    for factor, addend in jax.random.bits(key, (ROUNDS, 2), jnp.uint32):
        # each of these steps is invertible, the first since the factor is odd
        numbers = (numbers * (factor | 1) + addend) & mask
        numbers ^= numbers >> (bits // 2)
    (smaller,) = jnp.nonzero(numbers < size, size=size)
    return numbers[smaller].astype(jnp.int32)
