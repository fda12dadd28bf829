"""dm_env environments: truncations, seeds and specs."""

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from podracer.errors import UserError
from sebulba.host_environments.dm import DmEnv, maker, space_of
from sebulba.host_environments.guarded import guarded
from sebulba.host_environments.options import Options
from sebulba.host_environments.python import DM

FIRST, MID, LAST = map(int, dm_env.StepType)


class Walk(dm_env.Environment):
    """dm_env's side of it: three steps, with the seed for a first observation."""

    def __init__(self, length=3, discount=0.0, seed=0):
        self._length, self._discount, self._seed = length, discount, seed

    def reset(self):
        self._steps = 0
        return dm_env.restart(self._seen())

    def step(self, action):
        self._steps += 1
        if self._steps < self._length:
            return dm_env.transition(1.0, self._seen(), 0.9)
        return dm_env.TimeStep(dm_env.StepType.LAST, 2.0, self._discount, self._seen())

    def observation_spec(self):
        return {"at": specs.Array((), np.float64), "seed": specs.Array((), np.int64)}

    def action_spec(self):
        return specs.BoundedArray((2,), np.float64, -1, 1)

    def _seen(self):
        return {"at": float(self._steps), "seed": self._seed}


@pytest.mark.parametrize("discount", [0.0, 0.9])
def test_a_dm_env_environment_keeps_its_truncations(closing, discount):
    options = Options(arguments=f'{{"discount": {discount}}}')
    environment = closing(
        DM.make("tests.sebulba.host_environments.test_dm:Walk", 2, 7, 1, options)
    )
    first = environment.reset()
    np.testing.assert_array_equal(first.observation["seed"], [7, 8])
    action = np.zeros((2, 2), np.float32)
    rows = [environment.step(action) for _ in range(4)]
    assert [int(row.step_type[0]) for row in rows] == [MID, MID, LAST, FIRST]
    assert [float(row.discount[0]) for row in rows] == [1, 1, float(discount > 0), 1]
    assert [float(row.reward[0]) for row in rows] == [1, 1, 2, 0]
    assert environment.observation_spec()["at"].dtype == np.float32


class Task:
    """As dm_control's: its random numbers are the operating system's, unless it gets a seed."""

    def __init__(self, random=None):
        if not isinstance(random, np.random.RandomState):
            random = np.random.RandomState(random)
        self.random = random


class Control(Walk):
    """As dm_control's: shows the size of its model, and where an episode begins."""

    def __init__(self, random=None, random_state=None):
        super().__init__()
        if random_state is None:
            self.task = Task(random)
            self._size = self.task.random.uniform()
        else:
            self.random_state = np.random.RandomState(random_state)
            self._size = self.random_state.uniform()

    def reset(self):
        state = self.task.random if hasattr(self, "task") else self.random_state
        self._seed = state.randint(2**30)
        return super().reset()

    def _seen(self):
        return {"at": self._size, "seed": self._seed}


def load(domain_name, task_kwargs=None, environment_kwargs=None):
    """As `dm_control.suite.load`."""
    return Control(**(task_kwargs or {}))


def composed(random_state=None):
    """As environments of `dm_control.composer`."""
    return Control(random_state=random_state)


def unseeded():
    """A user's own, around dm_control."""
    return load("cartpole")


@pytest.mark.parametrize(
    ("function", "arguments", "sizes"),
    [
        (load, {"domain_name": "cartpole"}, 2),
        (load, {"domain_name": "cartpole", "task_kwargs": None}, 2),
        (load, {"domain_name": "cartpole", "task_kwargs": {"random": 3}}, 1),
        (composed, {}, 2),
        (composed, {"random_state": 3}, 1),
        (unseeded, {}, None),
    ],
)
def test_each_of_dm_controls_environments_has_its_own_seed(function, arguments, sizes):
    """Equal seeds are equal episodes; a seed in the arguments is one of the model alone."""

    def first(seed):
        path = f"{__name__}:{function.__name__}"
        return maker(path, arguments, Options())(seed)().reset()[0]

    one, same, other = first(7), first(7), first(8)
    assert one["seed"] == same["seed"] != other["seed"]
    if sizes:
        assert one["at"] == same["at"]
        assert len({float(one["at"]), float(other["at"])}) == sizes


def test_what_is_no_environment_is_not_touched():
    """Nothing but its type is looked at."""

    class Trap:
        def __getattr__(self, name):
            pytest.fail(f"{name} was used")

        __repr__ = lambda self: "a trap"

    with pytest.raises(UserError, match="a trap is no dm_env.Environment"):
        DmEnv(Trap())


@pytest.mark.parametrize(
    "spec",
    [
        specs.StringArray(()),
        specs.Array((), object),
        specs.Array((), np.complex64),
        None,
        {"a": None},
        4,
    ],
)
def test_specs_that_are_not_supported_are_one_line(spec):
    with pytest.raises(
        UserError, match="^the spec .* is none of Array, Bound"
    ) as error:
        space_of(spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", [{}, (), specs.Array((0,), np.float32)])
def test_specs_without_elements_are_one_line(spec):
    given = {"observation_space": space_of(spec), "action_space": spaces.Discrete(2)}
    kind = type("Odd", (gymnasium.Env,), given)
    with pytest.raises(UserError, match="odd has observations .*one element at least"):
        guarded("odd", kind, True)
