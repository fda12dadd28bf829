"""Time limits, automatic resets and batches, on Catch and CartPole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import AutoReset, Batched, CartPole, Catch, TimeLimit, auto_reset


def keys(seed, *shape):
    return jax.random.split(jax.random.key(seed), shape)


@functools.partial(jax.jit, static_argnums=0)
def play(environment, keys, actions):
    """The FIRST timestep, then states and timesteps [steps, ...] after the actions."""

    def step(state, key_and_action):
        key, action = key_and_action
        state, timestep = environment.step(key, state, action)
        return state, (state, timestep)

    state, first = environment.initial_state(keys[0])
    return first, *jax.lax.scan(step, state, (keys[1:], actions))[1]


@pytest.mark.parametrize("limit, discount", [(1, 1), (3, 1), (9, 0), (20, 0)])
def test_time_limit_truncates_and_leaves_terminations_alone(limit, discount):
    length = min(limit, 9)  # Catch's own is 9
    actions = jnp.ones(length, jnp.int32)
    _, _, timesteps = play(TimeLimit(Catch(), limit), keys(0, length + 1), actions)
    before = [1] * (length - 1)
    np.testing.assert_array_equal(timesteps.step_type, [*before, 2])
    np.testing.assert_array_equal(timesteps.discount, [*before, discount])


def test_time_limit_needs_a_step():
    with pytest.raises(ValueError, match="max_steps is 0"):
        TimeLimit(Catch(), 0)


def test_auto_reset_from_every_position_of_an_episode():
    environment = AutoReset(Catch(rows=5))
    pattern = np.array([1, 1, 1, 2, 0] * 4)
    _, states, timesteps = play(environment, keys(0, 13), jnp.zeros(12, jnp.int32))
    np.testing.assert_array_equal(timesteps.step_type, pattern[:12])

    batched = jax.jit(Batched(environment).step)
    state = jax.tree.map(lambda leaf: leaf[:5], states)
    for t in range(6):
        state, timestep = batched(keys(t, 5), state, jnp.zeros(5, jnp.int32))
        np.testing.assert_array_equal(timestep.step_type, pattern[t + 1 : t + 6])


def test_the_step_after_last_is_a_new_initial_state_whatever_the_action():
    environment = Batched(AutoReset(Catch(rows=3)))
    same = keys(0, 1)[jnp.zeros(3, jnp.int32)]
    actions = jnp.array([[1, 1, 1], [1, 1, 1], [0, 1, 2]])
    first, states, timesteps = play(environment, jnp.stack([same] * 4), actions)
    np.testing.assert_array_equal(timesteps.step_type, [[1] * 3, [2] * 3, [0] * 3])
    np.testing.assert_array_equal(states.last, timesteps.last())
    again = jax.tree.map(lambda leaf: leaf[-1], timesteps)
    jax.tree.map(np.testing.assert_array_equal, again, first)


def test_auto_reset_is_applied_once():
    environment = auto_reset(Catch())
    assert auto_reset(environment) is environment == AutoReset(Catch())


def test_a_batch_equals_its_members():
    environment = AutoReset(TimeLimit(CartPole(), 20))
    actions = np.random.default_rng(0).integers(0, 2, (50, 3), np.int32)
    first, _, together = play(Batched(environment), keys(0, 51, 3), actions)
    assert together.first().sum() >= 6
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    for i in range(3):
        alone = play(environment, keys(0, 51, 3)[:, i], actions[:, i])
        jax.tree.map(lambda leaf, one, i=i: close(leaf[i], one), first, alone[0])
        jax.tree.map(lambda leaf, one, i=i: close(leaf[:, i], one), together, alone[2])
