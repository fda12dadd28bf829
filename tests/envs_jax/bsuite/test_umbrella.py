"""Umbrella: rewards, observations, distractors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import Umbrella, check
from tests.envs_jax.unrolling import play


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("right", [True, False])
def test_umbrella_pays_for_the_first_action(length, right):
    def policy(key, timestep):
        rain = timestep.observation[0] == 1
        answer = jnp.where(right, rain, ~rain)
        return jnp.where(timestep.first(), answer, jax.random.bernoulli(key)) * 1

    environment = Umbrella(length, distractors=3)
    timesteps = play(environment, policy, length, copies=2_048)
    np.testing.assert_array_equal(timesteps.reward[:, -1], 1 if right else -1)
    np.testing.assert_array_equal(timesteps.last().any(0), [False] * length + [True])
    assert not timesteps.discount[:, -1].any()
    noise = timesteps.reward[:, 1:-1]
    assert (abs(noise) == 1).all() and abs(noise.sum(1).mean()) < 0.16

    rain, umbrella, remaining, *bits = np.moveaxis(timesteps.observation, -1, 0)
    assert (rain == rain[:, :1]).all() and abs(rain[:, 0].mean() - 0.5) < 0.05
    assert (umbrella[:, 1:] == (rain if right else 1 - rain)[:, 1:]).all()
    np.testing.assert_allclose(remaining[0], 1 - np.arange(length + 1) / length)
    bits = np.stack([*bits, umbrella[:, :1].repeat(length + 1, 1)])
    assert {*np.unique(bits)} == {0, 1}
    series = np.concatenate(bits, axis=1)[:, : 3 * (length + 1)].T
    np.testing.assert_allclose(series.mean(1), 0.5, atol=0.05)  # 4 standard errors
    np.testing.assert_allclose(np.corrcoef(series), np.eye(len(series)), atol=0.1)


def test_umbrella_follows_the_protocol():
    check(Umbrella(length=1, distractors=0))


def test_umbrella_needs_a_step():
    with pytest.raises(ValueError, match="length is 0; .* at least 1"):
        Umbrella(length=0)


def test_umbrella_has_no_negative_number_of_distractors():
    with pytest.raises(ValueError, match="distractors is -1; .* at least 0"):
        Umbrella(distractors=-1)
