"""Deep sea: moves, costs, the treasure, and the mapping of actions."""

import dm_env
import jax
import numpy as np
import pytest

from envs_jax import DeepSea, check


def dive(environment, moves):
    """Rewards and observations of an episode with these moves, True for right."""
    state, timestep = environment.initial_state(jax.random.key(0))
    rewards, observations = [], [timestep.observation]
    for move in moves:
        rights = environment._rights()[state.row, state.column]
        action = np.int32(rights if move else 1 - rights)
        assert timestep.step_type != dm_env.StepType.LAST
        state, timestep = environment.step(jax.random.key(0), state, action)
        rewards.append(timestep.reward)
        observations.append(timestep.observation)
    assert timestep.step_type == dm_env.StepType.LAST and timestep.discount == 0
    return np.array(rewards), np.array(observations)


def test_right_in_every_step_finds_the_treasure():
    rewards, observations = dive(DeepSea(4), [True] * 4)
    np.testing.assert_allclose(rewards, [-0.0025] * 3 + [0.9975])
    np.testing.assert_array_equal(observations[:-1], [np.diag(x) for x in np.eye(4)])
    assert not observations[-1].any()


@pytest.mark.parametrize("wrong", range(4))
def test_one_step_to_the_left_misses_it(wrong):
    rewards, observations = dive(DeepSea(4), [i != wrong for i in range(4)])
    np.testing.assert_allclose(rewards, [-0.0025 * (i != wrong) for i in range(4)])
    columns = observations[:-1].argmax(-1).max(-1)  # of the row that is not empty
    left = [max(0, i if i <= wrong else i - 2) for i in range(4)]
    if wrong == 0:  # the wall: one column is lost, not two
        left = [0, 0, 1, 2]
    np.testing.assert_array_equal(columns, left)


def test_both_actions_lead_to_the_right_somewhere():
    rights = DeepSea(8)._rights()
    assert 16 < rights.sum() < 48
    np.testing.assert_array_equal(rights, DeepSea(8)._rights())
    assert (rights != DeepSea(8, mapping_seed=1)._rights()).any()


def test_deep_sea_follows_the_protocol():
    check(DeepSea(size=1), deterministic=True)
    check(DeepSea(size=5), deterministic=True)


@pytest.mark.parametrize("options", [{"size": 0}, {"mapping_seed": -1}])
def test_deep_sea_refuses(options):
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name} is {value}; it must be at least"):
        DeepSea(**options)
