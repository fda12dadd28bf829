"""LPG's chains: rewards, observations, lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import LPGChain, check
from envs_jax.lpg.chain import TASKS
from tests.envs_jax.unrolling import play


def decode(task, observation):
    """The correct action and the first action, read from the observation."""
    if TASKS[task].distractors:
        return observation[..., 0], observation[..., 1]
    return observation // 2 % 2, observation % 2


@pytest.mark.parametrize("task", TASKS)
def test_chain_reveals_the_correct_action_and_pays_for_it(task):
    def policy(key, timestep):
        correct, _ = decode(task, timestep.observation)
        answer = jnp.int32(correct)
        return jnp.where(timestep.first(), answer, jax.random.bernoulli(key)) * 1

    environment = LPGChain(task, instance=1)
    state, _ = jax.jit(environment.initial_state)(jax.random.key(0))
    length = int(state.length)
    timesteps = play(environment, policy, length, copies=512)
    np.testing.assert_array_equal(timesteps.last().any(0), [False] * length + [True])
    np.testing.assert_array_equal(timesteps.reward[:, -1], 1)
    noise = timesteps.reward[:, 1:-1]
    if TASKS[task].noisy:
        assert (abs(noise) == 1).all() and abs(noise.mean()) < 0.1
    else:
        assert not noise.any()

    correct, first = decode(task, timesteps.observation)
    assert (correct == correct[:, :1]).all() and abs(correct[:, 0].mean() - 0.5) < 0.1
    assert (first[:, 0] == 0).all() and (first[:, 1:] == correct[:, 1:]).all()
    if not TASKS[task].distractors:
        steps = timesteps.observation // 4
        np.testing.assert_array_equal(steps, [range(length + 1)] * 512)


@pytest.mark.parametrize("action", [0, 1])
def test_a_fixed_action_earns_nothing_on_average(action):
    environment = LPGChain(instance=1)
    timesteps = play(environment, lambda key, timestep: action, 30, copies=2_048)
    first_last = timesteps.last().argmax(1)
    rewards = timesteps.reward[range(2_048), first_last]
    assert {*rewards.tolist()} == {-1, 1} and abs(rewards.mean()) < 0.09


@pytest.mark.parametrize("task", TASKS)
def test_chain_lengths_belong_to_instances(task):
    def lengths(instance):
        start = jax.vmap(LPGChain(task, instance).initial_state)
        return start(jax.random.split(jax.random.key(0), 3))[0].length

    lengths = np.array(jax.jit(jax.vmap(lengths))(jnp.arange(500)))
    assert (lengths == lengths[:, :1]).all()
    row = TASKS[task]
    assert {*lengths[:, 0]} == {*range(row.shortest, row.longest + 1)}


@pytest.mark.parametrize("task", TASKS)
def test_chains_follow_the_protocol(task):
    check(LPGChain(task))


def test_an_unknown_task_is_an_error():
    with pytest.raises(ValueError, match="'shrt'; known: short, short-noisy"):
        LPGChain("shrt")
