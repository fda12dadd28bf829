"""Pendulum equals gymnasium's, step by step, and starts as it does."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import Pendulum
from envs_jax.classic_control import pendulum
from tests.envs_jax.unrolling import play


@pytest.mark.core
def test_pendulum_equals_gymnasium():
    reference = gymnasium.make("Pendulum-v1").unwrapped
    random = np.random.default_rng(0)
    reference.reset(seed=0)
    actions = random.uniform(-3, 3, (1_000, 1)).astype(np.float32)  # some beyond 2
    before = random.uniform((-np.pi, -8), (np.pi, 8), (1_000, 2)).astype(np.float32)
    before[:2] = [[3.1, 5], [-3.1, -5]]  # over the top, in both directions
    after, rewards = [], []
    for reference.state, action in zip(before.astype(float), actions, strict=True):
        observation, reward, *_ = reference.step(action)
        after.append(observation)
        rewards.append(reward)

    step = jax.jit(jax.vmap(Pendulum().step, (None, 0, 0)))
    state, timestep = step(jax.random.key(0), pendulum.State(*before.T), actions)
    np.testing.assert_allclose(timestep.observation, after, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(timestep.reward, rewards, rtol=1e-6, atol=1e-6)
    assert timestep.mid().all() and (timestep.discount == 1).all()
    assert abs(state.angle).max() <= np.float32(np.pi)
    assert (np.sign(state.angle[:2]) == [-1, 1]).all()

    for spec, space in (
        (Pendulum().observation_spec(), reference.observation_space),
        (Pendulum().action_spec(), reference.action_space),
    ):
        assert spec.shape == space.shape and spec.dtype == space.dtype
        np.testing.assert_array_equal(spec.minimum, space.low)
        np.testing.assert_array_equal(spec.maximum, space.high)


@pytest.mark.core
def test_pendulum_starts_anywhere_and_is_cut_off():
    def push(key, timestep):
        return jnp.ones(1)

    timesteps = play(envs_jax.make("pendulum"), push, steps=200, copies=2_048)
    np.testing.assert_array_equal(timesteps.step_type, [[0] + [1] * 199 + [2]] * 2_048)
    np.testing.assert_array_equal(timesteps.discount, 1)
    cos, sin, velocity = timesteps.observation[:, 0].T
    angle = np.arctan2(sin, cos)
    for x in (angle / np.pi, velocity):  # uniform and independent, from -1 to 1
        np.testing.assert_allclose((x.min(), x.max()), (-1, 1), atol=0.01)
        np.testing.assert_allclose((x.mean(), x.std()), (0, 3**-0.5), atol=0.05)
    assert abs(np.corrcoef(angle, velocity)[0, 1]) < 0.09  # 4 standard errors
