"""A batch on other machines: dynamic batching, and every way to lose a server."""

import contextlib
import signal
import socket
import time

import dm_env
import jax
import numpy as np
import pytest

from podracer.errors import UserError
from sebulba import cores, training
from tests.environments import HostCounter
from tests.sebulba.host_environments.remote.local import (
    Slow,
    client,
    serve,
    start_server,
)
from tests.sebulba.test_training import last, watcher

FIRST, MID, LAST = map(int, dm_env.StepType)


@pytest.fixture
def pace(closing):
    """Makes a client of environments that take so many seconds a step, asked for all."""

    def make(*seconds, **options):
        with_seed = serve(lambda seed: Slow(seconds[seed]))
        environment = closing(stack.enter_context(with_seed), len(seconds), **options)
        environment.send(np.zeros(len(seconds), int), np.arange(len(seconds)))
        began = time.monotonic()
        arrived = environment.receive()
        seconds = time.monotonic() - began
        environment.close()  # before its server
        return len(arrived), seconds

    with contextlib.ExitStack() as stack:
        yield make


def test_the_minimum_is_waited_for(pace):
    count, seconds = pace(0.0, 0.3, 6.0, batch_minimum=2, batch_seconds=60.0)
    assert count == 2 and 0.25 < seconds < 5.5


def test_the_minimum_is_waited_for_no_longer_than_its_time(pace):
    count, seconds = pace(0.0, 6.0, batch_minimum=2, batch_seconds=0.5)
    assert count == 1 and 0.45 < seconds < 5.5


def test_one_environment_is_always_waited_for(pace):
    count, seconds = pace(0.5, 6.0, batch_minimum=2, batch_seconds=0.1)
    assert count == 1 and 0.45 < seconds < 5.5


def test_no_more_than_the_maximum(pace):
    count, _ = pace(0.0, 0.0, 0.0, batch_minimum=2, batch_maximum=2, batch_seconds=9.0)
    assert count == 2


class Straggling(HostCounter):
    """Counters that answer one, two or three at a time, in any order."""

    def __init__(self, batch_size=4):
        super().__init__(batch_size)
        self._alone = [HostCounter(1) for _ in range(batch_size)]
        self._random, self._sent = np.random.default_rng(0), {}

    def reset(self):
        for environment in self._alone:
            environment.reset()
        return super().reset()._replace(observation=np.zeros((4, 1), np.float32))

    def send(self, action, which):
        assert action.shape == which.shape and not self._sent.keys() & set(which)
        self._sent |= dict(zip(which.tolist(), action, strict=True))

    def receive(self):
        count = min(len(self._sent), self._random.integers(1, 4))
        which = self._random.permutation([*self._sent])[:count].tolist()
        return [
            (
                i,
                jax.tree.map(
                    lambda x: x[0], self._alone[i].step(self._sent.pop(i)[None])
                ),
            )
            for i in which
        ]


def test_rows_follow_each_other_in_any_order_of_answers():
    rows = training.train(
        watcher(),
        lambda number: Straggling(),
        unroll_length=3,
        total_steps=240,
        cores=cores.split(jax.devices()[:2]),
        threads_per_core=1,
        max_lag=0,
        trajectories_per_report=1,
    )
    episodes = 0
    for number, (_, metrics) in enumerate(rows):
        assert metrics["wrong_rows"] == metrics["broken"] == 0
        assert metrics["memory"] == 3 * number  # the actor's state before row 0
        assert metrics["episode_length"] in (5.0,) or metrics["episodes"] == 0
        episodes += metrics["episodes"]
    assert episodes == 4 * 10  # the ends at steps 5, 11, ..., 59


# lost servers


def test_a_run_outlives_its_server():
    flags = "--env", "jax:catch", "--port"
    process, address = start_server(*flags, "0")
    rows = training.train(
        watcher_of_anything(),
        lambda number: client(address, 4),
        unroll_length=4,
        total_steps=16 * 60,
        cores=cores.split(jax.devices()[:1]),
        threads_per_core=1,
        trajectories_per_report=20,
    )
    _, before = next(rows)
    process.kill()
    process.communicate()
    again, _ = start_server(*flags, address.rpartition(":")[2])
    _, after = last(rows)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=200)
    assert again.returncode == 0
    assert before["lost_episodes"] == 0 and 1 <= after["lost_episodes"] <= 4
    assert after["steps"] == 16 * 60


def watcher_of_anything():
    """`watcher`, for observations of any shape."""
    agent = watcher()
    return agent._replace(
        actor_step=lambda keys, params, state, timestep: agent.actor_step(
            keys, params, state, timestep._replace(observation=timestep.reward[:, None])
        ),
        learner_step=lambda key, state, trajectory: (state, {"nothing": 0.0}),
    )


def test_the_other_server_takes_over(closing):
    with serve() as stays:
        with serve() as goes:
            environment = closing(f"{stays},{goes.removeprefix('grpc://')}", 2)
            assert environment.step(np.zeros(2, int)).step_type.tolist() == [MID, MID]
        after = environment.step(np.zeros(2, int))
        assert sorted(after.step_type.tolist()) == [FIRST, MID]
        assert environment.lost_episodes() == 1 and environment.lost_episodes() == 0


class Replaced(HostCounter):
    """Begins anew in its third step, as a batch whose worker died."""

    def step(self, action):
        timestep = super().step(action)
        return self.reset() if self._steps == 3 else timestep


def test_an_episode_that_the_server_lost_is_lost_here_too(closing):
    kinds = iter([Replaced])
    with serve(lambda seed: next(kinds, HostCounter)(1)) as address:
        environment = closing(address)
        seen = [int(environment.step(np.zeros(1, int)).step_type[0]) for _ in range(9)]
    assert seen == [MID, MID, FIRST, MID, MID, MID, MID, LAST, FIRST]
    assert environment.lost_episodes() == 1


def test_why_an_environment_was_not_made(closing):
    def make(seed):
        raise RuntimeError("no licence")

    with serve(make) as address, pytest.raises(Exception, match="no licence"):
        closing(address)


def test_a_connection_that_hangs_is_closed(closing):
    first = iter([2.0])
    with serve(lambda seed: Slow(next(first, 0.0))) as address:
        environment = closing(address, step_seconds=0.5, reconnect_seconds=3600.0)
        assert environment.patience > 3600  # of who waits for its steps
        assert environment.step(np.zeros(1, int)).step_type == FIRST
        assert environment.lost_episodes() == 1
        assert environment.step(np.zeros(1, int)).step_type == MID


def test_a_server_that_does_not_answer_any_more(closing):
    with serve() as address:
        environment = closing(address, reconnect_seconds=0.5)
    port = int(address.rpartition(":")[2])
    line = f"^{address}: it served this run, but does not answer any more"
    silent = socket.create_server(("127.0.0.1", port))  # as a process after SIGSTOP
    with silent, pytest.raises(UserError, match=line):
        environment.step(np.zeros(1, int))


def test_repeated_losses_end_the_run(closing):
    with serve(lambda seed: Slow(0.2)) as address:
        environment = closing(address, step_seconds=0.01)
        with pytest.raises(UserError, match="environment 0 was lost 6 times in a row"):
            for _ in range(20):
                environment.step(np.zeros(1, int))


def test_an_exception_ends_the_run(closing):
    with serve(lambda seed: HostCounter(1, fail_at=2)) as address:
        environment = closing(address)
        environment.step(np.zeros(1, int))
        with pytest.raises(Exception, match="the simulator broke"):
            environment.step(np.zeros(1, int))
