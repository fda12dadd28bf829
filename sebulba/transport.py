"""Between actors and learner: trajectories one way, parameters the other.

Only references are passed; arrays stay on their cores until the learner takes them.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from podracer import parallel

PATIENCE = 600.0  # seconds of waiting after which something must be broken


class Closed(Exception):
    """Raised in every waiting thread when the run ends."""


class ParameterServer:
    """The newest actor parameters, on every actor core."""

    def __init__(self, devices: list[jax.Device]):
        self._devices = devices
        self._latest: tuple[dict, int] = ({}, -1)

    def publish(self, params: Any, version: int) -> None:
        """Copies a SHARED tree to the actor cores; `version` counts learner updates."""
        copies = [parallel.on_device(params, device) for device in self._devices]
        # else actors would wait for the update themselves
        jax.block_until_ready(copies)
        self._latest = dict(zip(self._devices, copies, strict=True)), version

    def latest(self, device: jax.Device) -> tuple[Any, int]:
        """The newest parameters on that core, and their version."""
        copies, version = self._latest
        return copies[device], version


class Delivery(NamedTuple):
    """A trajectory on its way to the learner."""

    parts: list[Any]  # one Trajectory per learner core, still on the actor's core
    episodes: Any  # Sums of the episodes that finished in it
    games: Any  # Games that finished in it, or None
    lost: int  # episodes that were discarded in it
    versions: np.ndarray  # [T] or [T, B] of the parameters that acted at each step


class TrajectoryQueue:
    """A bounded queue that can also limit the lag between actors and learner.

    Without `max_lag`, trajectories are learned in the order in which they are finished, and
    an actor waits while `capacity` of them are ready. With it, they are learned in the order
    in which they were begun, and an actor begins one only while at most `max_lag` others are
    on their way: none is older than that many updates.

    The learner waits PATIENCE for a step of each actor's environments, and `patience` seconds
    more; neither while the actor waits here, nor while the caller holds a report.
    """

    def __init__(
        self, capacity: int, max_lag: int | None = None, patience: float = 0.0
    ):
        self._capacity, self._max_lag = capacity, max_lag
        self._patience = PATIENCE + patience
        self._ready: deque[tuple[int, Delivery]] = deque()
        self._begun = self._learned = 0
        self._change = threading.Condition()
        self._closed: BaseException | None = None
        self._waited = dict.fromkeys(("learner", "actors"), 0.0)  # seconds
        self._waiting: dict[threading.Thread, tuple[str, float]] = {}  # who, since when
        self._paused = 0.0  # seconds for which the caller has held reports
        self._last_steps: dict[threading.Thread, float] = {}  # the actors' last steps

    def begin(self) -> int:
        """An actor begins a trajectory; returns its number. Waits as `max_lag` demands."""
        with self._change:
            if self._max_lag is not None:
                self._wait(
                    "actors", lambda: self._begun - self._learned <= self._max_lag
                )
            self._begun += 1
            return self._begun - 1

    def put(self, number: int, delivery: Delivery) -> None:
        """Adds a finished trajectory; waits while there is no space."""
        with self._change:
            if self._max_lag is None:
                self._wait("actors", lambda: len(self._ready) < self._capacity)
            self._ready.append((number, delivery))
            self._change.notify_all()

    def get(self) -> Delivery:
        """Waits for the next trajectory to learn from, and returns it."""
        with self._change:
            self._wait("learner", lambda: self._next() is not None)
            self._check_actors()
            item = self._next()
            self._ready.remove(item)
            self._change.notify_all()
            return item[1]

    def stepped(self) -> None:
        """An actor's environments have taken a step: none hangs, however long a trajectory."""
        self._last_steps[threading.current_thread()] = self._now()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While the caller holds a report."""
        since = time.perf_counter()
        yield
        self._paused += time.perf_counter() - since

    def learned(self) -> None:
        """The trajectory last returned by `get` is learned, its parameters published."""
        with self._change:
            self._learned += 1
            self._change.notify_all()

    def close(self, reason: BaseException | None = None) -> None:
        """Raises the first `reason` in all waiting threads, now and later."""
        with self._change:
            self._closed = self._closed or reason or Closed()
            self._change.notify_all()

    def _next(self) -> tuple[int, Delivery] | None:
        if self._max_lag is None:
            return self._ready[0] if self._ready else None
        return next((x for x in self._ready if x[0] == self._learned), None)

    def waited(self) -> dict[str, float]:
        """Seconds that the learner and all actors have waited so far."""
        with self._change:
            seconds = dict(self._waited)
            for who, since in self._waiting.values():
                seconds[who] += time.perf_counter() - since
            return seconds

    def _wait(self, who: str, condition: Callable[[], bool]) -> None:
        """Waits until `condition()` is true, and counts the time.

        The learner gives up where no environment takes a step for long. Actors do not: the
        caller may hold a report for hours, and whatever ends the learner closes the queue.
        """
        thread, started = threading.current_thread(), time.perf_counter()
        self._waiting[thread] = who, started
        while not (self._closed or condition()):
            newest = max([started - self._paused, *self._last_steps.values()])
            left = self._patience + newest - self._now()
            if who == "learner" and left <= 0:
                break
            self._change.wait(left if who == "learner" else None)
        del self._waiting[thread]
        self._waited[who] += time.perf_counter() - started
        if thread in self._last_steps:
            self.stepped()  # its time begins again
        if self._closed:
            raise self._closed
        if not condition():
            raise TimeoutError(
                f"nothing moved for {self._patience:.0f} s: an environment or a core hangs"
            )

    def _check_actors(self) -> None:
        """Raises TimeoutError for one that hangs while others go on."""
        for thread, since in [*self._last_steps.items()]:
            stands = thread.is_alive() and thread not in self._waiting
            if stands and self._now() - since > self._patience:
                raise TimeoutError(
                    f"{thread.name} has not moved for {self._patience:.0f} s: its "
                    "environment or its core hangs"
                )

    def _now(self) -> float:
        """Seconds, without those for which the caller has held reports."""
        return time.perf_counter() - self._paused
