"""Python environments in worker processes: episodes as they are, and who dies or hangs."""

import os
import signal
import time

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from podracer.errors import UserError
from sebulba import host_environments
from sebulba.host_environments.options import Options
from sebulba.host_environments.processes import Processes
from sebulba.host_environments.python import DM

FIRST, MID, LAST = map(int, dm_env.StepType)
OPTIONS = Options(step_seconds=20.0)


def make_counter(length, truncates=False, trouble=None):
    """(seed) -> what makes an environment that shows its step, and may be in trouble."""

    class Counter(gymnasium.Env):
        observation_space = spaces.Dict(
            {
                "steps": spaces.Box(0, 99, (1,), np.float64),
                "half": spaces.Discrete(99, start=3),
            }
        )
        action_space = spaces.Discrete(2, start=5)

        def reset(self, *, seed=None, options=None):
            self.steps = 0
            return self.seen(), {}

        def step(self, action):
            assert action in (5, 6)
            self.steps += 1
            if trouble and self.steps == 3:
                trouble()
            over = self.steps == length
            return (
                self.seen(),
                float(action),
                over and not truncates,
                over and truncates,
                {},
            )

        def seen(self):
            return {"steps": np.array([float(self.steps)]), "half": self.steps // 2 + 3}

    return lambda seed: Counter


def step(environment, steps, action=1):
    """Timesteps [steps, B], stacked."""
    rows = [
        environment.step(np.full(environment.batch_size, action)) for _ in range(steps)
    ]
    return [np.stack(x) for x in zip(*(row[:3] for row in rows), strict=True)], rows


@pytest.fixture
def closing():
    """Closes what it is given, at the end of the test."""
    made = []
    yield lambda environment: made.append(environment) or environment
    for environment in made:
        environment.close()
        assert not any(p.is_alive() for p in environment._vector.processes)


@pytest.mark.parametrize("truncates", [False, True])
def test_episodes_are_the_environments_own(closing, truncates):
    environment = closing(
        Processes("counter", make_counter(3, truncates), 2, 0, OPTIONS)
    )
    first = environment.reset()
    assert (first.step_type == FIRST).all() and (first.discount == 1).all()
    (kinds, rewards, discounts), rows = step(environment, 8)
    kept = [row.observation["steps"][0, 0] for row in rows]
    assert kept == [1, 2, 3, 0, 1, 2, 3, 0]  # the last observation is seen, too
    np.testing.assert_array_equal(kinds[:, 0], [MID, MID, LAST, FIRST] * 2)
    np.testing.assert_array_equal(rewards[:, 1], [6, 6, 6, 0] * 2)
    np.testing.assert_array_equal(discounts[:, 0], [1, 1, int(truncates), 1] * 2)
    assert rows[0].observation["half"].dtype == np.int32
    assert [int(row.observation["half"][0]) for row in rows[:4]] == [0, 1, 1, 0]
    spec = environment.observation_spec()
    assert spec["steps"].dtype == np.float32 and spec["half"].num_values == 99
    assert (
        environment.action_spec().num_values == 2 and environment.lost_episodes() == 0
    )


def test_who_is_killed_costs_unfinished_episodes_only(closing):
    environment = closing(Processes("counter", make_counter(50), 2, 0, OPTIONS))
    environment.reset()
    step(environment, 3)
    os.kill(environment._vector.processes[1].pid, signal.SIGKILL)
    after = environment.step(np.zeros(2, int))
    assert (after.step_type == FIRST).all() and (after.observation["steps"] == 0).all()
    assert environment.lost_episodes() == 2 and environment.lost_episodes() == 0
    assert (step(environment, 2)[0][0] == MID).all()


def test_who_hangs_is_replaced_and_who_always_does_ends_the_run(closing):
    hanging = make_counter(50, trouble=lambda: time.sleep(1_000))
    environment = closing(
        Processes("sleeper", hanging, 1, 0, Options(step_seconds=0.5))
    )
    environment.reset()
    (kinds, _, _), _ = step(environment, 5)
    assert kinds[:, 0].tolist() == [MID, MID, FIRST, MID, MID]
    with pytest.raises(UserError, match="sleeper: its worker processes died or hung 6"):
        step(environment, 20)


@pytest.mark.filterwarnings("ignore:.*ERROR")
def test_what_an_environment_raises_ends_the_run(closing):
    def trouble():
        raise ZeroDivisionError("by a wall")

    broken = make_counter(50, trouble=trouble)
    environment = closing(Processes("broken", broken, 1, 0, OPTIONS))
    environment.reset()
    with pytest.raises(ZeroDivisionError, match="by a wall") as error:
        step(environment, 5)
    assert "raised by broken, in a worker process" in error.value.__notes__


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
    environment = closing(DM.make("tests.sebulba.test_doors:Walk", 2, 7, 1, options))
    first = environment.reset()
    np.testing.assert_array_equal(first.observation["seed"], [7, 8])
    action = np.zeros((2, 2), np.float32)
    rows = [environment.step(action) for _ in range(4)]
    assert [int(row.step_type[0]) for row in rows] == [MID, MID, LAST, FIRST]
    assert [float(row.discount[0]) for row in rows] == [1, 1, float(discount > 0), 1]
    assert [float(row.reward[0]) for row in rows] == [1, 1, 2, 0]
    assert environment.observation_spec()["at"].dtype == np.float32


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gym:CartPol-v1", "did you mean 'CartPole-v1'"),
        ("gym:nowhere:CartPole-v1", "nowhere"),
        ("dm:nowhere:make", "No module named 'nowhere'"),
        ("dm:math:nothing", "math has no function 'nothing'"),
        ("dm:math", "write dm:MODULE:FUNCTION"),
        ("gmy:CartPole-v1", "'gmy' in 'gmy:CartPole-v1' is no kind of environment"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(name, line):
    with pytest.raises(UserError, match=line) as error:
        host_environments.default_options(name)
    assert "\n" not in str(error.value)


def test_arguments_are_json():
    with pytest.raises(UserError, match="arguments is .*; it takes a JSON object"):
        host_environments.make("gym:CartPole-v1", 1, 0, 1, Options(arguments="size=5"))
