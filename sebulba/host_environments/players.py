"""A batch of environments on other machines, each in its own time.

A server that is gone costs the unfinished episode; its environment is joined again, there
or at the next server, and the run goes on.
"""

import queue
import threading
import time
from typing import Any

import dm_env
import jax
import numpy as np

from podracer.errors import UserError
from sebulba.host_environments.remote import Options
from sebulba.host_environments.servers import GONE, Environment, Server

LAST = dm_env.StepType.LAST
PAUSE = 0.5  # seconds between two attempts, and two looks at the clock
READY_SECONDS = 5.0  # that one attempt may take to reach a server
FAILURES, STEPS = 5, 100  # so many in a row, with fewer steps between, are too many
Answer = tuple[int, "dm_env.TimeStep | BaseException"]  # of which environment


class Player(threading.Thread):
    """Plays one environment: takes actions, gives timesteps.

    What it cannot mend it gives, too, as its last word.
    """

    def __init__(self, number: int, batch: "Remote", answers: "queue.Queue[Answer]"):
        super().__init__(name=f"environment {number}", daemon=True)
        self._number, self._batch, self._answers = number, batch, answers
        self.actions: queue.SimpleQueue = queue.SimpleQueue()
        self.lost = 0  # unfinished episodes
        self.deadline = np.inf  # by when its server must have answered
        self._failures, self._steps = 0, 0  # steps since the last failure
        self._way: Any = None  # to the server
        self._ended = False

    def run(self) -> None:
        try:
            self._play()
        except BaseException as error:  # noqa: BLE001 who receives raises it
            self._answers.put((self._number, error))

    def give_up(self) -> None:
        """Closes the connection, so that nothing waits for it any longer."""
        self.deadline = np.inf
        if self._way is not None:
            self._way.close()

    def end(self) -> None:
        self._ended = True
        self.actions.put(None)
        self.give_up()

    def _play(self) -> None:
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
            except GONE:
                self.give_up()
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
                f"{STEPS} steps: what do its servers say? (--env.step-seconds is how long a "
                "step may take)"
            )

    def _join(self, seconds: float) -> Environment | None:
        """An environment of the first server that has one; None at the end of the run.

        Raises UserError if there is none within `seconds`.
        """
        until = time.monotonic() + seconds
        servers = self._batch.servers
        attempt = self._number + self._failures
        while not self._ended:
            server = servers[attempt % len(servers)]
            left = max(0.1, until - time.monotonic())
            self._way = server.connect(min(left, READY_SECONDS))
            self.deadline = time.monotonic() + left + self._batch.options.step_seconds
            try:
                environment = server.join(self._way)
                self._batch.check(environment, server)
                return environment
            except GONE as error:
                self.give_up()
                if not self._ended and time.monotonic() > until:
                    raise UserError(server.complaint(error)) from error
                time.sleep(PAUSE)
            attempt += 1
        return None


class Remote:
    """B environments on servers, dealt out in turn: a HostEnvironment.

    Beside `step`, which waits for all of them: `send` to some, and `receive` from whoever
    has answered. What an environment raises ends the run, with the server's traceback.

    Raises:
      UserError: no server answers in time, their environments differ, or they are not
        supported.
    """

    frames_per_step = 1

    def __init__(self, servers: list[Server], batch_size: int, options: Options):
        self.batch_size, self.servers, self.options = batch_size, servers, options
        self._first: tuple[Environment, Server] | None = None
        self._lock = threading.Lock()
        # Not a SimpleQueue: Python 3.11's may wait for ever, whatever the timeout.
        self._answers: queue.Queue[Answer] = queue.Queue()
        self._playing = batch_size  # environments whose answers are still to come
        self._reported = 0  # of the lost episodes
        self._players = [Player(i, self, self._answers) for i in range(batch_size)]
        for player in self._players:
            player.start()
        try:
            self._begun = self._receive_all()
        except BaseException:
            self.close()
            raise

    def reset(self) -> dm_env.TimeStep:
        return self._begun

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self.send(action, np.arange(self.batch_size))
        return self._receive_all()

    def send(self, action: np.ndarray, which: np.ndarray) -> None:
        """Actions [M, ...] of the environments `which` [M], whose answers were received."""
        self._playing += len(which)
        for number, one in zip(which, action, strict=True):
            self._players[number].actions.put(one)

    def receive(self) -> list[tuple[int, dm_env.TimeStep]]:
        """Who has answered, and with what: one at least, as many as the options say."""
        options = self.options
        enough = min(options.batch_minimum, self._playing)
        until = time.monotonic() + options.batch_seconds
        arrived = []
        while len(arrived) < options.batch_maximum:
            late = time.monotonic() > until
            if arrived and (len(arrived) >= enough or late):
                seconds = 0.0  # whoever is here, but nobody else
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
        before, self._reported = self._reported, sum(x.lost for x in self._players)
        return self._reported - before

    def close(self) -> None:
        for player in self._players:
            player.end()

    def check(self, environment: Environment, server: Server) -> None:
        """Raises UserError unless its specs are those of all the others."""
        with self._lock:
            self._first = self._first or (environment, server)
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
        together = [arrived[number] for number in range(self.batch_size)]
        return jax.tree.map(lambda *x: np.stack(x), *together)

    def _next(self, seconds: float) -> tuple[int, dm_env.TimeStep] | None:
        """The next answer; None if there is none in time. Raises what a player could not
        mend."""
        try:
            number, answer = self._answers.get(seconds > 0, seconds)
        except queue.Empty:
            for player in self._players:
                if player.deadline < time.monotonic():
                    player.give_up()
            return None
        if isinstance(answer, BaseException):
            raise answer
        self._playing -= 1
        return number, answer
