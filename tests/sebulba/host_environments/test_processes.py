"""Environments in worker processes: episodes, and processes that die, hang or fail."""

import os
import signal
import time

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from podracer.errors import UserError
from sebulba.host_environments import processes
from sebulba.host_environments.options import Options
from sebulba.host_environments.processes import Processes

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


def test_a_killed_worker_costs_only_unfinished_episodes(closing):
    environment = closing(Processes("counter", make_counter(50), 2, 0, OPTIONS))
    environment.reset()
    step(environment, 3)
    os.kill(environment._workers.processes[1].pid, signal.SIGKILL)
    after = environment.step(np.zeros(2, int))
    assert (after.step_type == FIRST).all() and (after.observation["steps"] == 0).all()
    assert environment.lost_episodes() == 2 and environment.lost_episodes() == 0
    assert (step(environment, 2)[0][0] == MID).all()


def test_new_workers_have_seeds_that_none_had(closing, monkeypatch):
    """Also long after the failure before, which is then forgotten."""
    monkeypatch.setattr(processes, "STEPS", 1)
    seeds = []

    def make(seed):
        seeds.append(seed)
        return make_counter(50)(seed)

    environment = closing(Processes("counter", make, 2, 0, OPTIONS))
    environment.reset()
    for _ in range(2):
        step(environment, 2)
        os.kill(environment._workers.processes[0].pid, signal.SIGKILL)
        environment.step(np.zeros(2, int))
    assert len(set(seeds)) == len(seeds) == 6


def test_ctrl_c_is_the_main_processs_business(closing):
    """A terminal sends it to the workers, too, which the main process ends itself."""
    environment = closing(Processes("counter", make_counter(50), 1, 0, OPTIONS))
    environment.reset()
    os.kill(environment._workers.processes[0].pid, signal.SIGINT)
    time.sleep(0.2)
    assert (step(environment, 3)[0][0] == MID).all()
    assert environment.lost_episodes() == 0


def test_a_hanging_worker_is_replaced_and_repeated_hangs_end_the_run(closing):
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
def test_an_exception_ends_the_run(closing):
    def trouble():
        raise ZeroDivisionError("by a wall")

    broken = make_counter(50, trouble=trouble)
    environment = closing(Processes("broken", broken, 1, 0, OPTIONS))
    environment.reset()
    with pytest.raises(ZeroDivisionError, match="by a wall") as error:
        step(environment, 5)
    assert "raised by broken, in a worker process" in error.value.__notes__


class Trouble:
    """What an environment may raise that does not survive the way between processes."""

    class Own(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def own(self):
        raise self.Own("this", "that")

    def of_files(self):
        raise FileNotFoundError(
            "levels.xml"
        )  # an OSError, as a dead worker's pipe raises

    def of_numpy(self):
        raise FloatingPointError("underflow")  # which elsewhere means a diverged run


@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        (Trouble().own, "environment raised Own: this and that"),
        (Trouble().of_files, "environment raised FileNotFoundError: levels.xml"),
        (Trouble().of_numpy, "environment raised FloatingPointError: underflow"),
    ],
)
def test_an_exception_that_cannot_be_pickled_is_reported(closing, trouble, line):
    broken = make_counter(50, trouble=trouble)
    environment = closing(Processes("broken", broken, 2, 0, OPTIONS))
    environment.reset()
    with pytest.raises(RuntimeError, match=line) as error:
        step(environment, 5)
    assert "Traceback" in "".join(error.value.__notes__)


def test_environments_are_closed_in_their_workers(closing, tmp_path):
    """They may have processes and files of their own."""

    def make(seed):
        environment = make_counter(5)(seed)()
        environment.close = lambda: (tmp_path / str(os.getpid())).touch()
        return environment

    environment = Processes("counter", lambda seed: lambda: make(seed), 2, 0, OPTIONS)
    environment.reset()
    workers = {str(process.pid) for process in environment._workers.processes}
    environment.close()
    assert workers == {path.name for path in tmp_path.iterdir()}


def test_every_reset_may_take_as_long_as_the_first(closing):
    def make(seed):
        environment = make_counter(2)(seed)()
        reset = environment.reset
        environment.reset = lambda **options: time.sleep(1.0) or reset(**options)
        return environment

    quick = Options(step_seconds=0.3, start_seconds=60.0)
    environment = closing(
        Processes("loader", lambda seed: lambda: make(seed), 1, 0, quick)
    )
    environment.reset()
    worker = environment._workers.processes[0].pid
    (kinds, _, _), _ = step(environment, 4)
    assert kinds[:, 0].tolist() == [MID, LAST, FIRST, MID]
    assert environment._workers.processes[0].pid == worker  # it was not replaced
    assert environment.patience > 60  # of who waits for its steps


class Liar(gymnasium.Env):
    """Returns `lie` instead of an observation from a step on."""

    observation_space = spaces.Box(0, 9, (3,), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, lie, reward=0.0, at=2):
        self._lie, self._reward, self._at = lie, reward, at

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return np.zeros(3, np.uint8), {}

    def step(self, action):
        self._steps += 1
        if self._steps == self._at:
            return self._lie, self._reward, False, False, {}
        return np.zeros(3, np.uint8), 0.0, False, False, {}


RIGHT = np.zeros(3, np.uint8)


@pytest.mark.parametrize(
    ("lie", "reward", "line"),
    [
        (np.uint8([5]), 0.0, r"observation has shape \(1,\); declared is \(3,\)"),
        (
            np.float32([0.5, 0, 0]),
            0.0,
            "observation has dtype float32; declared is uint8",
        ),
        (np.array([0, 0, 300]), 0.0, r"observation\[2\] is 300, outside .* 0 to 9"),
        (RIGHT, np.nan, "reward is nan; it must be finite"),
    ],
)
def test_a_lie_ends_the_run_in_one_line(closing, capfd, lie, reward, line):
    """Shared memory would broadcast the first, truncate the second, wrap the third."""
    liar = lambda seed: lambda: Liar(lie, reward)
    environment = closing(Processes("liar", liar, 2, 0, OPTIONS))
    environment.reset()
    step(environment, 1)
    with pytest.raises(UserError, match=f"^liar: {line}; correct the environ") as error:
        step(environment, 1)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""  # gymnasium would print a traceback


def test_bounds_may_be_left_unchecked(closing):
    liar = lambda seed: lambda: Liar(np.uint8([0, 0, 11]))
    free = Options(step_seconds=20.0, check_bounds=False)
    environment = closing(Processes("liar", liar, 1, 0, free))
    environment.reset()
    assert step(environment, 2)[1][1].observation[0].tolist() == [0, 0, 11]


def test_an_action_out_of_range_is_one_line(closing):
    environment = closing(Processes("counter", make_counter(5), 1, 0, OPTIONS))
    environment.reset()
    with pytest.raises(UserError, match="counter: action.* is 2, outside the declared"):
        step(environment, 1, action=2)


def test_actions_have_the_dtype_of_their_space(closing):
    """Otherwise they are no elements of it, which environments may assert."""
    space = spaces.Box(0, 3, (2,), np.uint8)

    def make(seed):
        environment = make_counter(5)(seed)()
        environment.action_space = space
        environment.step = lambda action: (
            environment.seen(),
            float(space.contains(action)),
            *(False, False, {}),
        )
        return environment

    environment = closing(
        Processes("strict", lambda seed: lambda: make(seed), 1, 0, OPTIONS)
    )
    environment.reset()
    assert environment.step(np.int32([[0, 3]])).reward == 1
