"""Python environments in worker processes: gymnasium's AsyncVectorEnv (arXiv:2407.17032).

A worker process that dies or hangs costs only the unfinished episodes of its batch: all of
the batch's workers are replaced, and new episodes begin.
"""

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import dm_env
import numpy as np

from podracer.errors import UserError
from sebulba.host_environments import checking, spaces
from sebulba.host_environments.environment import NextStepReset
from sebulba.host_environments.guarded import DEAD, guarded
from sebulba.host_environments.options import Options

FAILURES, STEPS = 5, 1_000  # the most failures in a row, with fewer steps between them
MAIN = threading.Lock()  # held while the main module is hidden from new processes
QUEUE_SECONDS = 10.0  # for an exception that a worker has announced
CLOSE_SECONDS = (
    5.0  # for all environments of a batch to close; 1 where one died or hangs
)


class Processes:
    """B environments, each in a worker process of its own, as one HostEnvironment.

    An exception in an environment ends the run, with the environment's traceback.

    Args:
      name: of the environment, for messages.
      make: (seed) -> a function that makes a gymnasium.Env with that seed in the worker.
      batch_size: B.
      seed: environment i is seeded with seed + i; after a failure with other seeds.
      options: time limits, and whether bounds are checked.

    Raises:
      UserError: the workers do not start in time, what they make is no environment, or
        its observations or actions are not supported.
    """

    frames_per_step = 1

    def __init__(
        self,
        name: str,
        make: Callable[[int], Callable[[], Any]],
        batch_size: int,
        seed: int,
        options: Options,
    ):
        self.batch_size, self._name, self._options = batch_size, name, options
        self.patience = options.step_seconds + 2 * options.start_seconds
        self._make, self._seed = make, seed
        self._lost = self._replaced = 0
        self._failures = self._steps = 0  # in a row; since the last one
        self._episodes = NextStepReset(batch_size)
        self._vector = self._start()
        self._observation_space = self._vector.single_observation_space
        self._observation_spec = spaces.spec_of(self._observation_space)
        action_space = self._vector.single_action_space
        self._action_spec = spaces.action_spec(name, action_space)
        self._first_action = np.asarray(
            getattr(action_space, "start", 0), action_space.dtype
        )
        self._check_action = checking.action_checker(
            name, self._action_spec, (batch_size,)
        )

    def reset(self) -> dm_env.TimeStep:
        return self._attempt(self._reset)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._check_action(action)
        return self._attempt(lambda: self._step(action))

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> Any:
        return self._action_spec

    def finished_games(self) -> None:
        return None

    def lost_episodes(self) -> int:
        lost, self._lost = self._lost, 0
        return lost

    def close(self) -> None:
        _end(self._vector, CLOSE_SECONDS)

    def _start(self) -> Any:
        """The workers. They import what the environment needs, but not JAX."""
        from gymnasium.vector import AsyncVectorEnv

        makers = [
            guarded(self._name, self._make(int(seed)), self._options.check_bounds)
            for seed in self._seeds()
        ]
        with MAIN, _without_main_module():
            vector = _within(
                self._options.start_seconds,
                lambda: AsyncVectorEnv(makers, context="forkserver"),
                f"{self._name}: its worker processes did not start",
            )
        vector._raise_if_errors = partial(_raise_first, vector, self._name)
        return vector

    def _seeds(self) -> np.ndarray:
        """A seed for each environment; after failures, others."""
        if self._replaced == 0:
            return self._seed + np.arange(self.batch_size)
        sequence = np.random.SeedSequence((self._seed, self._replaced))
        return sequence.generate_state(self.batch_size) % 2**31

    def _attempt(self, what: Callable[[], dm_env.TimeStep]) -> dm_env.TimeStep:
        try:
            return what()
        except DEAD as error:
            self._replace(error)
            return self._attempt(self._reset)

    def _replace(self, error: Exception) -> None:
        """Starts new workers; raises UserError after too many failures in a row."""
        self._failures = self._failures + 1 if self._steps < STEPS else 1
        if self._failures > FAILURES:
            raise UserError(
                f"{self._name}: its worker processes died or hung {self._failures} times in "
                f"a row ({type(error).__name__}); does the environment run by itself? "
                "(--env.step-seconds is the time limit of a step)"
            ) from error
        self._replaced += 1
        self._lost += self._episodes.unfinished
        self._steps, self._episodes = 0, NextStepReset(self.batch_size)
        _end(self._vector, 1.0)
        self._vector = self._start()

    def _reset(self) -> dm_env.TimeStep:
        self._vector.reset_async(seed=[int(seed) for seed in self._seeds()])
        observation, _ = self._vector.reset_wait(self._options.start_seconds)
        zeros = np.zeros(self.batch_size)
        return self._timestep(observation, zeros, zeros > 0, zeros > 0)

    def _step(self, action: np.ndarray) -> dm_env.TimeStep:
        action = np.asarray(action, self._first_action.dtype) + self._first_action
        self._vector.step_async(action)
        seconds = self._options.step_seconds
        if self._episodes.unfinished < self.batch_size:  # the others are reset
            seconds = max(seconds, self._options.start_seconds)
        observation, reward, terminated, truncated, _ = self._vector.step_wait(seconds)
        self._steps += 1
        return self._timestep(observation, reward, terminated, truncated)

    def _timestep(self, observation, reward, terminated, truncated) -> dm_env.TimeStep:
        observation = spaces.as_spec(self._observation_space, observation)
        return self._episodes.timestep(observation, reward, terminated, truncated)


def _raise_first(vector: Any, name: str, successes: Iterable[bool]) -> None:
    """In place of gymnasium's own, which also prints and may wait without a limit."""
    if all(successes):
        return
    try:
        index, _, error, trace = vector.error_queue.get(timeout=QUEUE_SECONDS)
    except queue.Empty:
        raise RuntimeError(f"{name}: a worker process failed without a word") from None
    if not isinstance(error, UserError):
        error.add_note(f"raised by {name}, in a worker process")
        error.add_note(f"worker process {index}: {trace}")
    raise error


def _end(vector: Any, seconds: float) -> None:
    """Lets all environments close, which may end processes of their own; then kills workers."""
    for pipe in vector.parent_pipes:
        with contextlib.suppress(OSError):  # of a worker that is dead already
            pipe.send(("close", None))
    deadline = time.monotonic() + seconds
    for process in vector.processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
    for process in vector.processes:
        process.join(10.0)
    for pipe in vector.parent_pipes:
        if pipe is not None:
            pipe.close()
    vector.closed = True


def _within(seconds: float, what: Callable[[], Any], complaint: str) -> Any:
    """What the function returns or raises; UserError if it takes longer."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append((what(), None))
        except BaseException as error:  # noqa: BLE001 raised again below
            results.append((None, error))

    thread = threading.Thread(target=run, daemon=True, name="starting workers")
    thread.start()
    thread.join(seconds)
    if not results:
        raise UserError(f"{complaint} within {seconds:g} s (--env.start-seconds)")
    result, error = results[0]
    if isinstance(error, DEAD):
        raise UserError(f"{complaint} ({type(error).__name__})") from error
    if error is not None:
        raise error
    return result


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Workers that start meanwhile do not import the main module, which would import JAX.

    What is defined in the main module is pickled by value, and so is our part of a worker.
    """
    import cloudpickle

    from sebulba.host_environments import dm, guarded

    main = sys.modules["__main__"].__dict__
    hidden = {name: main.pop(name, None) for name in ("__spec__", "__file__")}
    main["__spec__"] = None
    ours = (checking, dm, guarded, spaces)
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)
        main.update({name: x for name, x in hidden.items() if x is not None})
