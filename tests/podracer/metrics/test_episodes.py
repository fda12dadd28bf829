"""Episode returns and lengths, ends at every position."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.metrics import episodes

pytestmark = pytest.mark.core

FIRST, MID, LAST = dm_env.StepType


def run(step_types, rewards):
    """Counts a batch of one after FIRST; returns the state."""
    state = episodes.initial_state(1)
    for step_type, reward in zip(step_types, rewards, strict=True):
        timestep = dm_env.TimeStep(
            jnp.array([step_type], jnp.int32), jnp.array([reward]), jnp.ones(1), None
        )
        state = episodes.step(state, timestep)
    return state


def collect(state):
    state, sums = episodes.collect(state)
    return state, episodes.means(jax.tree.map(float, episodes.named(sums)))


def test_an_episode_is_counted_once_and_the_next_one_starts_at_zero():
    state = run([MID, LAST, FIRST, MID, MID, LAST, FIRST], [1.0, 2, 0, 3, 4, 5, 0])
    state, metrics = collect(state)
    assert float(metrics["episodes"]) == 2
    assert float(metrics["episode_return"]) == (3 + 12) / 2
    assert float(metrics["episode_length"]) == (2 + 3) / 2
    assert float(state.episode_return[0]) == 0


def test_a_running_episode_survives_a_count():
    state = run([MID, MID], [1.0, 1.0])
    state, metrics = collect(state)
    assert float(metrics["episodes"]) == 0
    assert np.isnan(float(metrics["episode_return"]))
    last = dm_env.TimeStep(jnp.array([int(LAST)]), jnp.ones(1), jnp.zeros(1), None)
    _, metrics = collect(episodes.step(state, last))
    assert float(metrics["episode_return"]) == 3
    assert float(metrics["episode_length"]) == 3


def test_an_unroll_counts_as_its_steps_one_by_one():
    random = np.random.default_rng(0)
    step_types = random.integers(0, 3, (50, 4)).astype(np.int32)
    rewards = random.integers(-3, 4, (50, 4)).astype(np.float32)
    unroll = dm_env.TimeStep(step_types, rewards, np.ones((50, 4)), None)
    expected = episodes.initial_state(4)
    for step_type, reward in zip(step_types, rewards, strict=True):
        timestep = dm_env.TimeStep(step_type, reward, np.ones(4), None)
        expected = episodes.step(expected, timestep)
    assert (expected.finished > 0).all()
    got = episodes.steps(episodes.initial_state(4), unroll)
    for one, other in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_more_steps_than_an_int32_counts():
    state = episodes.initial_state(4)._replace(length_sum=jnp.full(4, 2**30))
    _, sums = episodes.collect(state)
    assert float(sums.length_sum) == 2**32


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_long_episodes_and_many_of_them_do_not_drift(length):
    """Of a million float32, plain sums are off by a hundredth."""
    reward, number = np.float32(0.1), 1_000_000

    def step(state, i):
        ends = (i + 1) % (length + 1) == length
        kind = jnp.where(ends, LAST, jnp.where(i % (length + 1) == length, FIRST, MID))
        row = dm_env.TimeStep(jnp.int32(kind)[None], reward[None], jnp.ones(1), None)
        return episodes.step(state, row), None

    total = number if length > 1 else 2 * number
    count = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(total))[0])
    _, metrics = collect(count(episodes.initial_state(1)))
    assert float(metrics["episodes"]) == number // length
    expected = float(reward) * length
    np.testing.assert_allclose(metrics["episode_return"], expected, rtol=1e-6)
