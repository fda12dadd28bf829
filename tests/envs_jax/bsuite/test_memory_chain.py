"""Memory chain: only the remembered bit pays."""

import numpy as np

from envs_jax import MemoryChain
from tests.envs_jax.unrolling import play, random_policy


def test_memory_chain_rewards_the_bit():
    def remember(key, timestep):
        return 1

    timesteps = play(MemoryChain(3), remember, steps=3, copies=32)
    remaining, cue = np.moveaxis(timesteps.observation, -1, 0)
    np.testing.assert_allclose(remaining, [[1, 2 / 3, 1 / 3, 0]] * 32, atol=1e-6)
    np.testing.assert_array_equal(cue[:, 1:], 0)
    assert set(cue[:, 0].tolist()) == {-1, 1}
    np.testing.assert_array_equal(timesteps.reward[:, -1], cue[:, 0])
    np.testing.assert_array_equal(timesteps.reward[:, :-1], 0)
    np.testing.assert_array_equal(timesteps.step_type, [[0, 1, 1, 2]] * 32)


def test_memory_chain_pays_nothing_without_memory():
    environment = MemoryChain()
    timesteps = play(environment, random_policy(environment), steps=5, copies=4_096)
    assert abs(timesteps.reward.sum(1).mean()) < 0.06  # 4 standard errors
