"""Python environments in worker processes, as one HostEnvironment.

A worker process that dies or hangs costs only the unfinished episodes of its batch: all of
the batch's workers are replaced, and new episodes begin.
"""

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

from podracer.errors import UserError
from sebulba.host_environments import checking, spaces
from sebulba.host_environments.environment import NextStepReset
from sebulba.host_environments.guarded import DEAD
from sebulba.host_environments.options import Options
from sebulba.host_environments.workers import Workers

FAILURES, STEPS = 5, 1_000  # the most failures in a row, with fewer steps between them
CLOSE_SECONDS = 5.0  # for a batch to close; 1 where an environment died or hangs


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
        self._workers = self._start()
        self._observation_space = self._workers.observation_space
        self._observation_spec = spaces.spec_of(self._observation_space)
        self._action_space = self._workers.action_space
        self._action_spec = spaces.action_spec(name, self._action_space)
        if self._workers.render_fps:
            self.render, self.render_fps = self._render, self._workers.render_fps
        self._check_action = checking.action_checker(
            name, self._action_spec, (batch_size,)
        )

    def reset(self) -> dm_env.TimeStep:
        return self._attempt(self._reset)

    def step(self, action: Any) -> dm_env.TimeStep:
        self._check_action(action)
        return self._attempt(lambda: self._step(action))

    def succeeded(self) -> np.ndarray | None:
        """bool [B], what infos said in the last step; None where none of them did."""
        if all(x is None for x in self._success):
            return None
        return np.array([bool(x) for x in self._success])

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
        self._workers.end(CLOSE_SECONDS)

    def _render(self) -> np.ndarray:
        """The first environment's picture, uint8 [H, W, 3]."""
        return self._workers.render(self._options.step_seconds)

    def _start(self) -> Workers:
        """The workers. They import what the environment needs, but not JAX."""
        makers = [self._make(int(seed)) for seed in self._seeds()]
        options = self._options
        return Workers(self._name, makers, options.check_bounds, options.start_seconds)

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
        self._workers.end(1.0)
        self._workers = self._start()

    def _reset(self) -> dm_env.TimeStep:
        seeds = [int(seed) for seed in self._seeds()]
        observation = self._workers.reset(seeds, self._options.start_seconds)
        zeros = np.zeros(self.batch_size)
        self._success = [None] * self.batch_size
        return self._timestep(observation, zeros, zeros > 0, zeros > 0)

    def _step(self, action: np.ndarray) -> dm_env.TimeStep:
        seconds = self._options.step_seconds
        if self._episodes.unfinished < self.batch_size:  # the others are reset
            seconds = max(seconds, self._options.start_seconds)
        actions = spaces.members(self._action_space, action)
        stepped = self._workers.step(actions, seconds)
        self._steps += 1
        *timestep, self._success = stepped
        return self._timestep(*timestep)

    def _timestep(self, observation, reward, terminated, truncated) -> dm_env.TimeStep:
        observation = spaces.as_spec(self._observation_space, observation)
        return self._episodes.timestep(observation, reward, terminated, truncated)
