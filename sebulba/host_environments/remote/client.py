"""The client: a batch of environments on other machines, each stepping at its own pace.

A server that is lost costs the unfinished episode; the environment is joined again, on the
same server or the next one, and training continues.
"""

import queue
import threading
import time
from typing import Any

import dm_env
import numpy as np

from podracer.errors import UserError
from sebulba.host_environments.environment import stack
from sebulba.host_environments.remote.client_options import Options
from sebulba.host_environments.remote.connection import (
    LOST,
    Connection,
    Environment,
    Server,
)

LAST = dm_env.StepType.LAST
PAUSE = 0.5  # seconds between two attempts, and between two checks of deadlines
REACH_SECONDS = 5.0  # time limit for one attempt to reach a server
FAILURES, STEPS = 5, 100  # the most failures in a row, with fewer steps between them
Answer = tuple[int, "dm_env.TimeStep | BaseException"]  # the environment's number first


class EnvironmentThread(threading.Thread):
    """Steps one environment: takes actions, puts timesteps into the queue of answers.

    An error from which it cannot recover is its last answer.
    """

    def __init__(self, number: int, batch: "Remote", answers: "queue.Queue[Answer]"):
        super().__init__(name=f"environment {number}", daemon=True)
        self._number, self._batch, self._answers = number, batch, answers
        self.actions: queue.SimpleQueue = queue.SimpleQueue()
        self.lost = 0  # unfinished episodes
        self.deadline = np.inf  # for the server's answer
        self._failures, self._steps = 0, 0  # steps since the last failure
        self._connection: Connection | None = None
        self._ended = False

    def run(self) -> None:
        try:
            self._interact()
        except BaseException as error:  # noqa: BLE001 raised by `Remote.receive`
            self._answers.put((self._number, error))

    def disconnect(self) -> None:
        """Closes the connection, which wakes a thread that waits for an answer."""
        self.deadline = np.inf
        if self._connection is not None:
            self._connection.close()

    def end(self) -> None:
        self._ended = True
        self.actions.put(None)
        self.disconnect()

    def _interact(self) -> None:
        environment = self._join(self._batch.options.connect_seconds)
        while environment is not None:
            unfinished = False
            try:
                action = None
                while not self._ended:
                    timestep = self._step(environment, action)
                    unfinished = timestep.step_type != LAST
                    self._answers.put((self._number, timestep))
                    action = self.actions.get()
            except LOST:
                self.disconnect()
            if not self._ended:
                self.lost += int(unfinished)
                self._count_failure()
            environment = self._join(self._batch.options.reconnect_seconds)

    def _step(self, environment: Environment, action: Any) -> dm_env.TimeStep:
        self.deadline = time.monotonic() + self._batch.options.step_seconds
        timestep = environment.step(action)
        self.deadline = np.inf
        self._steps += 1
        return timestep

    def _count_failure(self) -> None:
        self._failures = self._failures + 1 if self._steps < STEPS else 1
        self._steps = 0
        if self._failures > FAILURES:
            raise UserError(
                f"{self.name} was lost {self._failures} times in a row, each time within "
                f"{STEPS} steps: see the output of its servers (--env.step-seconds is the "
                "time limit of a step)"
            )

    def _join(self, seconds: float) -> Environment | None:
        """An environment on the first server that has one; None when the run ends.

        Raises UserError if there is none within `seconds`.
        """
        until = time.monotonic() + seconds
        servers = self._batch.servers
        attempt = self._number + self._failures
        while not self._ended:
            server = servers[attempt % len(servers)]
            left = max(0.1, until - time.monotonic())
            self._connection = server.connect(min(left, REACH_SECONDS))
            self.deadline = time.monotonic() + left + self._batch.options.step_seconds
            try:
                environment = server.join(self._connection)
                self._batch.check_specs(environment, server)
                return environment
            except LOST as error:
                self.disconnect()
                if not self._ended and time.monotonic() > until:
                    known = server.address in self._batch.known
                    raise UserError(server.explain(error, known)) from error
                time.sleep(PAUSE)
            attempt += 1
        return None


class Remote:
    """B environments on servers, distributed over them: a HostEnvironment.

    Beside `step`, which waits for all of them: `send` actions to some, and `receive` from
    those that have answered. An exception in an environment ends the run, with the server's
    traceback.

    Raises:
      UserError: no server answers in time, their environments differ, or they are not
        supported.
    """

    frames_per_step = 1

    def __init__(self, servers: list[Server], batch_size: int, options: Options):
        self.batch_size, self.servers, self.options = batch_size, servers, options
        self.patience = 2 * options.step_seconds + options.reconnect_seconds
        self._first: tuple[Environment, Server] | None = None
        self.known: set[str] = set()  # addresses of servers that gave us an environment
        self._lock = threading.Lock()
        # Not a SimpleQueue: Python 3.11's can wait without end, whatever the timeout.
        self._answers: queue.Queue[Answer] = queue.Queue()
        self._pending = batch_size  # answers that are still to come
        self._reported = 0  # lost episodes that were reported
        self._threads = [
            EnvironmentThread(i, self, self._answers) for i in range(batch_size)
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._initial = self._receive_all()
        except BaseException:
            self.close()
            raise

    def reset(self) -> dm_env.TimeStep:
        return self._initial

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self.send(action, np.arange(self.batch_size))
        return self._receive_all()

    def send(self, action: np.ndarray, which: np.ndarray) -> None:
        """Sends actions [M, ...] to the environments `which` [M], which have answered."""
        self._pending += len(which)
        for number, one in zip(which, action, strict=True):
            self._threads[number].actions.put(one)

    def receive(self) -> list[tuple[int, dm_env.TimeStep]]:
        """The numbers and timesteps of environments that have answered, one at least."""
        options = self.options
        enough = min(options.batch_minimum, self._pending)
        until = time.monotonic() + options.batch_seconds
        arrived = []
        while len(arrived) < options.batch_maximum:
            late = time.monotonic() > until
            if arrived and (len(arrived) >= enough or late):
                seconds = 0.0  # those that are here, without waiting for more
            else:
                seconds = min(PAUSE, max(0.0, until - time.monotonic()) or PAUSE)
            answer = self._next(seconds)
            if answer is not None:
                arrived.append(answer)
            elif seconds == 0.0:
                break
        return arrived

    def observation_spec(self) -> Any:
        return self._first[0].observation_spec

    def action_spec(self) -> Any:
        return self._first[0].action_spec

    def finished_games(self) -> None:
        return None

    def lost_episodes(self) -> int:
        before, self._reported = self._reported, sum(x.lost for x in self._threads)
        return self._reported - before

    def close(self) -> None:
        for thread in self._threads:
            thread.end()

    def check_specs(self, environment: Environment, server: Server) -> None:
        """Raises UserError unless its specs equal those of all others."""
        with self._lock:
            self._first = self._first or (environment, server)
            self.known.add(server.address)
        first, where = self._first
        if difference := first.difference(environment):
            raise UserError(
                f"{where.address} and {server.address} have different environments: "
                f"{difference}; serve the same everywhere"
            )

    def _receive_all(self) -> dm_env.TimeStep:
        arrived = {}
        while len(arrived) < self.batch_size:
            arrived |= self.receive()
        return stack([arrived[number] for number in range(self.batch_size)])

    def _next(self, seconds: float) -> tuple[int, dm_env.TimeStep] | None:
        """The next answer, None if there is none in time; raises a thread's error."""
        try:
            number, answer = self._answers.get(seconds > 0, seconds)
        except queue.Empty:
            for thread in self._threads:
                if thread.deadline < time.monotonic():
                    thread.disconnect()
            return None
        if isinstance(answer, BaseException):
            raise answer
        self._pending -= 1
        return number, answer
