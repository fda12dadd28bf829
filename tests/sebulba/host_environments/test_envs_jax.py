"""JAX environments on the host: episodes, seeds and continuous actions."""

import dm_env
import jax
import numpy as np
import pytest

from podracer.errors import UserError
from sebulba import host_environments
from tests.sebulba.host_environments.stepping import (
    check_observations,
    check_protocol,
    interact,
    make,
)

LAST = dm_env.StepType.LAST


def test_a_jax_environment_on_the_host():
    environment = make("jax:catch", rows=4)
    timesteps = interact(environment, 11)
    check_protocol(timesteps)
    assert [*np.flatnonzero(timesteps.step_type[:, 0] == LAST)] == [3, 7, 11]
    again = interact(make("jax:catch", rows=4), 11)
    np.testing.assert_array_equal(timesteps.reward, again.reward)
    other = interact(make("jax:catch", rows=4, seed=1), 11)
    assert (np.stack(other.observation) != np.stack(again.observation)).any()


def test_it_steps_on_the_cpu_whatever_the_default_device():
    first, other = jax.local_devices(backend="cpu")[:2]
    with jax.default_device(other):  # as a GPU or TPU is
        environment = make("jax:catch", rows=4)
        for steps in (environment.reset, lambda: environment.step(np.zeros(4, int))):
            steps()
            state = environment.snapshot()[-1]
            assert {first} == jax.tree.leaves(state)[0].devices()


def test_a_jax_environment_depends_on_its_seed_alone():
    """Not on those beside it: hosts can share a batch out."""
    options = host_environments.default_options("jax:catch")
    four, two = (
        host_environments.make("jax:catch", size, seed, 1, options)
        for size, seed in ((4, 10), (2, 12))
    )
    seen = [four.reset().observation[2:]], [two.reset().observation]
    for _ in range(12):  # into the next episode
        seen[0].append(four.step(np.zeros(4, np.int32)).observation[2:])
        seen[1].append(two.step(np.zeros(2, np.int32)).observation)
    np.testing.assert_array_equal(*seen)


def test_a_continuous_jax_environment_on_the_host():
    environment = make("jax:pendulum")
    assert environment.action_spec().shape == (1,)
    timesteps = interact(environment, 210)
    check_protocol(timesteps)
    check_observations(environment.observation_spec(), timesteps.observation)
    assert [*np.flatnonzero(timesteps.step_type[:, 0] == LAST)] == [200]
    assert (timesteps.discount == 1).all()
    assert (timesteps.reward[1:] < 0).sum() > 4 * 200


LIAR = """
import dataclasses
from envs_jax import Catch


@dataclasses.dataclass(frozen=True)
class Liar(Catch):
    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return state, timestep._replace(observation=timestep.observation * 7)
"""


def test_a_users_environment_that_breaks_its_spec_is_named(tmp_path, monkeypatch):
    (tmp_path / "liar_env.py").write_text(LIAR)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="Liar: observation.* is 7.0, expected"):
        make("jax:liar_env:Liar")
