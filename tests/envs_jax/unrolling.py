"""Plays policies in environments, for the tests of all families."""

import jax
import jax.numpy as jnp


def play(environment, policy, steps, copies, seed=0):
    """Timesteps [copies, steps + 1, ...] of `policy(key, timestep) -> action`; no resets."""

    def step(carry, key):
        state, timestep = environment.step(key, carry[0], policy(key, carry[1]))
        return (state, timestep), timestep

    def unroll(key):
        start = environment.initial_state(key)
        _, rest = jax.lax.scan(step, start, jax.random.split(key, steps))
        return jax.tree.map(
            lambda x, xs: jnp.concatenate([x[None], xs]), start[1], rest
        )

    keys = jax.random.split(jax.random.key(seed), copies)
    return jax.device_get(jax.jit(jax.vmap(unroll))(keys))


def random_policy(environment):
    count = environment.action_spec().num_values
    return lambda key, timestep: jax.random.randint(key, (), 0, count)
