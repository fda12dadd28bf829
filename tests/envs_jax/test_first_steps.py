"""First timesteps that contradict their spec or the protocol are not learned from."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

import anakin
import envs_jax
from anakin import checks, population
from envs_jax import Catch, ProtocolError, TimeLimit, Wrapper, check_first_steps
from podracer.errors import UserError
from tests.agents import reinforce
from tests.environments import Counter

pytestmark = pytest.mark.core


@dataclasses.dataclass(frozen=True)
class Liar(Counter):
    """Its observation leaves what its spec says, in the fifth step of five."""

    spec: Any = None

    def observation_spec(self):
        return {"count": self.spec}

    def initial_state(self, key):
        state, timestep = super().initial_state(key)
        return state, self._told(timestep)

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return state, self._told(timestep)

    def _told(self, timestep):
        x = timestep.observation.astype(self.spec.dtype).reshape(self.spec.shape)
        return timestep._replace(observation={"count": x})


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            specs.BoundedArray((1,), np.float32, 0, 4),
            r"^Liar: observation\['count'\]\[0\] of timestep 5 is 5.0, expected .*0 to 4",
        ),
        (
            specs.DiscreteArray(5),
            r"^Liar: observation\['count'\] of timestep 5 is 5, expected .*0 to 4",
        ),
        (
            specs.BoundedArray((1,), np.float32, 1, 9),
            r"^Liar: observation\['count'\]\[0\] of timestep 0 is 0.0, .*1 to 9",
        ),
    ],
)
def test_first_steps_that_contradict_the_spec(spec, line):
    with pytest.raises(ProtocolError, match=line) as error:
        check_first_steps(Liar(spec=spec))
    assert "\n" not in str(error.value)


def test_first_steps_that_agree_with_the_spec():
    for spec in (
        specs.BoundedArray((1,), np.float32, 0, 5),
        specs.BoundedArray((1,), np.float32, 0, 5 * (1 - 1e-7)),  # rounded
        specs.BoundedArray((1,), np.float32, -np.inf, np.finfo(np.float32).max),
        specs.DiscreteArray(6),
    ):
        check_first_steps(Liar(spec=spec))
    check_first_steps(
        Liar(4, specs.DiscreteArray(5))
    )  # what follows LAST does not count


def test_first_steps_that_are_not_finite():
    class Infinite(Counter):  # and an environment that cannot be hashed
        __hash__ = None

        def step(self, key, state, action):
            state, timestep = super().step(key, state, action)
            observation = jnp.where(state > 2, jnp.nan, timestep.observation)
            return state, timestep._replace(observation=observation)

    with pytest.raises(ProtocolError, match=r"observation\[0\] of timestep 3 is nan"):
        check_first_steps(Infinite())


@pytest.mark.parametrize(
    ("at", "wrong", "line"),
    [
        (0, {"reward": 1.0}, "reward of timestep 0 is 1.0, expected 0 at FIRST"),
        (0, {"discount": 0.0}, "discount of timestep 0 is 0.0, expected 1 at FIRST"),
        (3, {"discount": 1.5}, "discount of timestep 3 is 1.5, expected 0 to 1"),
        (0, {"step_type": 1}, r"step_type of timestep 0 is 1, expected 0 \(FIRST\) fr"),
        (0, {"step_type": 2}, r"step_type of timestep 0 is 2, expected 0 \(FIRST\) fr"),
        (
            2,
            {"step_type": 0, "reward": 0.0},
            r"step_type of timestep 2 is 0, expected 0 \(FIRST\) from initial_state only",
        ),
        (
            3,
            {"reward": jnp.inf},
            "reward of timestep 3 is inf, expected a finite number",
        ),
        (3, {"step_type": 3}, r"step_type of timestep 3 is 3, expected 0 \(FIRST\), "),
        (6, {"reward": jnp.inf}, None),  # after LAST, which does not count
    ],
)
def test_first_steps_that_break_the_protocol(at, wrong, line):
    class Wrong(Counter):
        def initial_state(self, key):
            state, timestep = super().initial_state(key)
            return state, self._changed(state, timestep)

        def step(self, key, state, action):
            state, timestep = super().step(key, state, action)
            return state, self._changed(state, timestep)

        def _changed(self, state, timestep):
            changes = {
                name: jnp.where(state == at, value, getattr(timestep, name))
                for name, value in wrong.items()
            }
            return timestep._replace(**changes)

    if line is None:
        check_first_steps(Wrong())
    else:
        with pytest.raises(ProtocolError, match=f"^Wrong: {line}"):
            check_first_steps(Wrong())


def test_training_refuses_such_an_environment():
    """Also in a population; the line names environment, field, value and way out."""
    environment = Liar(spec=specs.BoundedArray((1,), np.float32, 0, 4))
    options = {"batch_size": 8, "unroll_length": 4, "total_steps": 32}
    line = (
        r"^Liar: observation.* is 5.0, .*: correct the environment or its observation_"
    )
    with pytest.raises(UserError, match=line) as error:
        next(anakin.train(reinforce(1, 2), environment, cores=1, **options))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=line):
        next(
            population.train(
                lambda values: reinforce(1, 2),
                environment,
                seeds=[0],
                cores=1,
                **options,
            )
        )


class Doubling(Wrapper):
    """A user's own, around one of ours."""


@pytest.mark.parametrize(
    ("environment", "is_played"),
    [
        (envs_jax.make("catch"), False),
        (envs_jax.make("pendulum"), False),  # with its time limit
        (Doubling(Catch()), True),
        (TimeLimit(Counter(), 9), True),
        (type("Mine", (Catch,), {})(), True),
    ],
)
def test_only_what_is_not_ours_is_played_before_a_run(
    environment, is_played, monkeypatch
):
    played = []
    monkeypatch.setattr(checks, "check_first_steps", played.append)
    checks.check_played(environment)
    assert played == [environment] * is_played
