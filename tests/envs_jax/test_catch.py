"""Catch: its rules, its observations, its distribution of balls."""

import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import Catch
from tests.envs_jax.unrolling import play


def follow_the_ball(key, timestep):
    """Catch's optimal policy, from the board alone."""
    ball = timestep.observation[:-1].any(0).argmax()
    paddle = timestep.observation[-1].argmax()
    return 1 + jnp.sign(ball - paddle)


def test_catch_can_be_solved():
    timesteps = play(Catch(), follow_the_ball, steps=9, copies=64)
    np.testing.assert_array_equal(timesteps.reward[:, :-1], 0)
    np.testing.assert_array_equal(timesteps.reward[:, -1], 1)
    np.testing.assert_array_equal(timesteps.step_type, [[0] + [1] * 8 + [2]] * 64)
    np.testing.assert_array_equal(timesteps.discount, [[1] * 9 + [0]] * 64)


def test_catch_shows_the_board():
    environment = Catch(rows=4, columns=3)
    timesteps = play(environment, lambda key, timestep: 0, steps=3, copies=64)
    boards = timesteps.observation
    balls = boards[:, 0, 0].argmax(-1)
    assert set(balls.tolist()) == {0, 1, 2}
    for board, ball, reward in zip(boards, balls, timesteps.reward, strict=True):
        expected = np.zeros((4, 4, 3))
        expected[range(4), range(4), ball] = 1  # one row a step
        expected[range(4), 3, [1, 0, 0, 0]] = 1  # stopped by the wall
        np.testing.assert_array_equal(board, expected)
        assert reward[-1] == (1 if ball == 0 else -1)


def test_catch_drops_balls_evenly():
    boards = play(Catch(), lambda key, timestep: 1, steps=1, copies=10_000).observation
    share = boards[:, 0, 0].mean(0)
    np.testing.assert_allclose(share, 0.2, atol=0.02)  # 5 standard errors


def test_catch_needs_a_board():
    with pytest.raises(ValueError, match="rows=1"):
        Catch(rows=1)
