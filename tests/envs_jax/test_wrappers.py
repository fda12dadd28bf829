"""Time limits, automatic resets and batches, on Catch and CartPole."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import AutoReset, Batched, CartPole, Catch, TimeLimit, auto_reset


@functools.partial(jax.jit, static_argnums=0)
def unroll(environment, state, keys, actions):
    """(states, timesteps) [steps, ...] that follow `state`; B environments may go along."""

    def step(state, key_and_action):
        key, action = key_and_action
        state, timestep = environment.step(key, state, action)
        return state, (state, timestep)

    return jax.lax.scan(step, state, (keys, actions))[1]


def keys(seed, *shape):
    return jax.random.split(jax.random.key(seed), shape)


def play(environment, actions, seed=0):
    """The timesteps [steps, ...] after FIRST."""
    state, _ = environment.initial_state(jax.random.key(seed))
    return unroll(environment, state, keys(seed, len(actions)), actions)[1]


@pytest.mark.parametrize("limit, discount", [(1, 1), (3, 1), (9, 0), (20, 0)])
def test_time_limit_truncates_and_leaves_terminations_alone(limit, discount):
    length = min(limit, 9)  # Catch's own is 9
    timesteps = play(TimeLimit(Catch(), limit), jnp.ones(length, jnp.int32))
    expected = [1] * (length - 1) + [2]
    np.testing.assert_array_equal(timesteps.step_type, expected)
    np.testing.assert_array_equal(timesteps.discount, [1] * (length - 1) + [discount])


def test_time_limit_needs_a_step():
    with pytest.raises(ValueError, match="max_steps is 0"):
        TimeLimit(Catch(), 0)


def test_auto_reset_from_every_position_of_an_episode():
    environment = AutoReset(Catch(rows=5))
    actions = jnp.zeros(12, jnp.int32)
    state, _ = environment.initial_state(jax.random.key(0))
    states, timesteps = unroll(environment, state, keys(0, 12), actions)
    pattern = np.array([1, 1, 1, 2, 0] * 4)
    np.testing.assert_array_equal(timesteps.step_type, pattern[:12])

    states = jax.tree.map(lambda leaf: leaf[:5], states)
    _, timesteps = unroll(
        Batched(environment), states, keys(1, 12, 5), jnp.zeros((12, 5), jnp.int32)
    )
    for start in range(5):
        expected = pattern[start + 1 :][:12]
        np.testing.assert_array_equal(timesteps.step_type[:, start], expected)


def test_the_step_after_last_is_a_new_initial_state_whatever_the_action():
    environment = AutoReset(Catch(rows=3))
    key = jax.random.key(3)
    state, _ = environment.initial_state(key)
    states, timesteps = unroll(environment, state, keys(0, 2), jnp.ones(2, jnp.int32))
    last = jax.tree.map(lambda leaf: leaf[-1], states)
    assert timesteps.last()[-1] and last.last
    expected = environment.initial_state(key)
    for action in range(3):
        chex.assert_trees_all_equal(environment.step(key, last, action), expected)


def test_auto_reset_is_applied_once():
    environment = auto_reset(Catch())
    assert auto_reset(environment) is environment == AutoReset(Catch())


def test_a_batch_equals_its_members():
    environment = AutoReset(TimeLimit(CartPole(), 20))
    batch = Batched(environment)
    first_keys, step_keys = keys(0, 3), keys(1, 50, 3)
    actions = jax.random.randint(jax.random.key(2), (50, 3), 0, 2)
    states, first = batch.initial_state(first_keys)
    _, together = unroll(batch, states, step_keys, actions)
    assert together.first().sum() > 6
    for i in range(3):
        state, timestep = environment.initial_state(first_keys[i])
        _, alone = unroll(environment, state, step_keys[:, i], actions[:, i])
        member = jax.tree.map(lambda leaf, i=i: leaf[i], first)
        chex.assert_trees_all_close(timestep, member)
        member = jax.tree.map(lambda leaf, i=i: leaf[:, i], together)
        chex.assert_trees_all_close(alone, member, rtol=1e-4, atol=1e-6)
