"""Any Python environment, in worker processes: gymnasium's vector of them (arXiv:2407.17032).

A worker that dies or hangs costs the unfinished episodes of its batch and no more: all of
the batch's workers are replaced, and begin anew.
"""

import contextlib
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import numpy as np

from podracer.errors import UserError
from sebulba.host_environments.options import Options
from sebulba.host_environments.spaces import action_spec, as_float32, spec_of

FIRST, MID, LAST = dm_env.StepType
FAILURES, STEPS = 5, 1_000  # so many in a row, with fewer steps between, are too many
HIDING = threading.Lock()  # one at a time: the main program is everybody's
DEAD = (EOFError, OSError, multiprocessing.TimeoutError)  # as their pipes tell it


class Processes:
    """B environments, a worker process each, as one HostEnvironment.

    What an environment raises ends the run, with the environment's traceback.

    Args:
      name: for messages.
      make: (seed) -> a function that makes a gymnasium.Env there, with that seed.
      batch_size: B.
      seed: environment i is seeded with seed + i; after a failure with others.
      options: how long to wait.

    Raises:
      UserError: no worker starts in time, or the actions are not supported.
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
        self._make, self._seed = make, seed
        self._lost, self._failures, self._steps = (
            0,
            0,
            0,
        )  # steps since the last failure
        self._over = np.ones(batch_size, bool)
        self._vector = self._start()
        self._observation_space = self._vector.single_observation_space
        self._action_spec = action_spec(name, self._vector.single_action_space)
        self._observation_spec = spec_of(self._observation_space)

    def reset(self) -> dm_env.TimeStep:
        return self._attempt(self._reset)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
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
        _end(self._vector)

    def _start(self) -> Any:
        """The workers. Their imports are theirs: not even this package comes with them."""
        from gymnasium.vector import AsyncVectorEnv

        makers = [self._make(int(seed)) for seed in self._seeds()]
        with HIDING, _without_main_program():
            return _within(
                self._options.start_seconds,
                lambda: AsyncVectorEnv(makers, context="forkserver"),
                f"{self._name}: its worker processes did not start",
            )

    def _seeds(self) -> np.ndarray:
        """A seed for each environment; after failures, others."""
        if self._failures == 0:
            return self._seed + np.arange(self.batch_size)
        sequence = np.random.SeedSequence((self._seed, self._failures))
        return sequence.generate_state(self.batch_size) % 2**31

    def _attempt(self, what: Callable[[], dm_env.TimeStep]) -> dm_env.TimeStep:
        try:
            return what()
        except DEAD as error:
            self._replace(error)
            return self._attempt(self._reset)
        except Exception as error:
            error.add_note(f"raised by {self._name}, in a worker process")
            raise

    def _replace(self, error: Exception) -> None:
        """New workers for dead ones, unless that happens again and again."""
        self._failures = self._failures + 1 if self._steps < STEPS else 1
        if self._failures > FAILURES:
            raise UserError(
                f"{self._name}: its worker processes died or hung {self._failures} times in "
                f"a row ({type(error).__name__}); does it run alone? "
                "(--env.step-seconds is how long a step may take)"
            ) from error
        self._lost += int((~self._over).sum())
        self._steps, self._over = 0, np.ones(self.batch_size, bool)
        _end(self._vector)
        self._vector = self._start()

    def _reset(self) -> dm_env.TimeStep:
        self._vector.reset_async(seed=[int(seed) for seed in self._seeds()])
        observation, _ = self._vector.reset_wait(self._options.start_seconds)
        nothing = np.zeros(self.batch_size)
        return self._timestep(observation, nothing, nothing > 0, nothing > 0)

    def _step(self, action: np.ndarray) -> dm_env.TimeStep:
        start = getattr(self._vector.single_action_space, "start", 0)
        self._vector.step_async(np.asarray(action) + start)
        seconds = self._options.step_seconds
        observation, reward, terminated, truncated, _ = self._vector.step_wait(seconds)
        self._steps += 1
        return self._timestep(observation, reward, terminated, truncated)

    def _timestep(self, observation, reward, terminated, truncated) -> dm_env.TimeStep:
        first = self._over  # NEXT_STEP is gymnasium's word for it
        self._over = (terminated | truncated) & ~first
        return dm_env.TimeStep(
            np.where(first, FIRST, np.where(self._over, LAST, MID)).astype(np.int32),
            np.where(first, 0.0, reward).astype(np.float32),
            np.where(self._over & terminated, 0.0, 1.0).astype(np.float32),
            _from_zero(self._observation_space, as_float32(observation)),
        )


def _from_zero(space: Any, x: Any) -> Any:
    """Discrete members count from 0, whatever the space's `start`."""
    if isinstance(x, dict):
        return {name: _from_zero(space.spaces[name], part) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(map(_from_zero, space.spaces, x))
    if hasattr(space, "n") and space.shape == ():
        return (x - getattr(space, "start", 0)).astype(np.int32)
    return x


def _end(vector: Any) -> None:
    """Ends all workers, at once and whatever they do."""
    for process in vector.processes:
        process.kill()
    for process in vector.processes:
        process.join(10.0)
    for pipe in vector.parent_pipes:
        if pipe is not None:
            pipe.close()
    vector.closed = True


def _within(seconds: float, what: Callable[[], Any], complaint: str) -> Any:
    """What it returns or raises; UserError if that takes longer."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append((what(), None))
        except BaseException as error:  # noqa: BLE001 raised by the caller
            results.append((None, error))

    thread = threading.Thread(target=run, daemon=True, name="starting workers")
    thread.start()
    thread.join(seconds)
    if not results:
        raise UserError(
            f"{complaint} in {seconds:g} s; --env.start-seconds is the limit"
        )
    result, error = results[0]
    if isinstance(error, DEAD):
        raise UserError(f"{complaint} ({type(error).__name__})") from error
    if error is not None:
        raise error
    return result


@contextlib.contextmanager
def _without_main_program() -> Iterator[None]:
    """Lets a worker begin without the main program, which would bring JAX along.

    What is defined in the main program travels by value, and so do our adapters.
    """
    import cloudpickle

    from sebulba.host_environments import dm

    main = sys.modules["__main__"].__dict__
    hidden = {name: main.pop(name, None) for name in ("__spec__", "__file__")}
    main["__spec__"] = None
    cloudpickle.register_pickle_by_value(dm)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(dm)
        main.update({name: x for name, x in hidden.items() if x is not None})
