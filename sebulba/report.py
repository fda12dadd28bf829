"""What happened between two reports: speed, policy lag, and who waited for whom."""

import time

import jax
import numpy as np

from podracer import episodes
from sebulba.learner import Learner
from sebulba.transport import Handed, TrajectoryQueue


class Report:
    """Collects on the host, from one row of metrics to the next."""

    def __init__(self, queue: TrajectoryQueue, threads: int, steps: int):
        self._queue, self._threads = queue, threads
        self._steps_a_trajectory = steps
        self._compile_seconds = 0.0
        self._learned = self._dropped = 0  # trajectories since the start
        self._lags: list[np.ndarray] = []
        self._sums: list[episodes.Sums] = []
        self._start_clock()

    def learned(self, handed: Handed, lag: np.ndarray) -> None:
        """Counts a trajectory, learned from `lag` [T] updates after it was acted."""
        self._lags.append(lag)
        self._sums.append(handed.episodes)
        self._learned += 1
        if self._learned == 1:  # until here everything was compiled
            self._compile_seconds = time.perf_counter() - self._started
            self._start_clock()

    def dropped(self) -> None:
        """Counts a trajectory that came too late."""
        self._dropped += 1

    def row(self, learner: Learner) -> dict[str, float]:
        """The metrics since the last row; their words are in `podracer.metrics`."""
        seconds = time.perf_counter() - self._started
        learner_waited, actors_waited = self._waits() - self._waited
        timed = self._learned - self._learned_before
        lag = np.concatenate(self._lags)
        sums = jax.tree.map(lambda *x: sum(x), *jax.device_get(self._sums))
        row = learner.metrics() | episodes.means(sums)
        row |= {
            "seconds": seconds,
            "compile_seconds": self._compile_seconds,
            "steps_per_second": timed * self._steps_a_trajectory / seconds,
            "trajectories_per_second": timed / seconds,
            "learner_waiting": learner_waited / seconds,
            "actors_waiting": actors_waited / seconds / self._threads,
            "lag_mean": lag.mean(),
            "lag_median": np.median(lag),
            "lag_max": lag.max(),
        }
        row = {name: float(x) for name, x in row.items()} | {
            "updates": learner.updates,
            "steps": self._learned * self._steps_a_trajectory,
            "dropped": self._dropped,
        }
        self._lags, self._sums = [], []
        self._start_clock()
        return row

    def _start_clock(self) -> None:
        self._started = time.perf_counter()
        self._waited = self._waits()
        self._learned_before = self._learned

    def _waits(self) -> np.ndarray:
        """Seconds that the learner and all the actors have waited so far."""
        return np.array([self._queue.learner_waited, self._queue.actors_waited])
