"""CartPole equals gymnasium's, step by step, and starts as it does."""

import gymnasium
import jax
import numpy as np

from envs_jax import CartPole
from envs_jax.classic_control import cartpole
from tests.envs_jax.unrolling import play, random_policy


def test_cartpole_equals_gymnasium():
    reference = gymnasium.make("CartPole-v1").unwrapped
    random = np.random.default_rng(0)
    reference.reset(seed=0)
    steps = []
    for action in random.integers(0, 2, 1_000):
        before = reference.state
        after, reward, terminated, _, _ = reference.step(int(action))
        steps.append((before, action, after, reward, terminated))
        if terminated:
            reference.reset()
    before, action, after, reward, terminated = map(np.array, zip(*steps, strict=True))

    state = cartpole.State(*before.T.astype(np.float32))
    step = jax.jit(jax.vmap(CartPole().step, (None, 0, 0)))
    state, timestep = step(jax.random.key(0), state, action.astype(np.int32))
    np.testing.assert_allclose(timestep.observation, after, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(timestep.last(), terminated)
    np.testing.assert_array_equal(timestep.discount, 1 - terminated)
    np.testing.assert_array_equal(timestep.reward, reward)
    assert terminated.sum() > 20

    spec, space = CartPole().observation_spec(), reference.observation_space
    np.testing.assert_array_equal(spec.minimum, space.low)
    np.testing.assert_array_equal(spec.maximum, space.high)


def test_cartpole_starts_and_falls_as_it_should():
    environment = CartPole()
    timesteps = play(environment, random_policy(environment), steps=200, copies=4_096)
    start = timesteps.observation[:, 0]
    assert -0.05 <= start.min() < -0.0499 and 0.0499 < start.max() < 0.05
    np.testing.assert_allclose(start.mean(0), 0, atol=0.002)
    np.testing.assert_allclose(start.std(0), 0.1 / 12**0.5, atol=0.001)
    np.testing.assert_allclose(np.corrcoef(start.T), np.eye(4), atol=0.08)
    lengths = timesteps.last().argmax(1)
    assert abs(lengths.mean() - 22.3) < 0.8  # gymnasium's, 4 standard errors


def test_cartpole_without_velocities_shows_position_and_angle():
    full, masked = (
        play(CartPole(velocities), lambda key, timestep: 1, steps=3, copies=2)
        for velocities in (True, False)
    )
    np.testing.assert_array_equal(masked.observation, full.observation[..., ::2])
