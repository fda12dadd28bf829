"""Calls of the program, and what is told of them: Anakin's loop on the host."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp

from podracer import parallel, tally

CALL_SECONDS = 1.0  # of a program, or a run could not be stopped


class Reports(NamedTuple):
    """When a run reports: after each `updates`, and at its end."""

    steps: int  # environment steps of an update
    total_updates: int
    updates: int

    def next(self, done: int) -> int:
        """The updates at the report that follows `done`."""
        return min(done - done % self.updates + self.updates, self.total_updates)


def iterate(
    compile: Callable[[], Callable],
    state: Any,
    reports: Reports,
    stopped: Callable[[], bool],
) -> Iterator[tuple[Any, dict[str, float] | None]]:
    """Calls until all updates are done, `CALL_SECONDS` each, and yields the reports.

    Args:
      compile: makes the program, (state, updates, afresh) -> (state, metrics, failures).
      state: to begin with; its `updates` say how far it is.
      reports: when to yield state and metrics.
      stopped: if true, ends the run; between two reports with metrics None.
    """
    started = time.perf_counter()
    call = compile()
    compile_seconds = time.perf_counter() - started
    done, most = int(parallel.on_host(state.updates)), 1
    while done < reports.total_updates and not stopped():
        reported, seconds, target = done, 0.0, reports.next(done)
        while done < target and not stopped():
            updates, started = min(most, target - done), time.perf_counter()
            afresh = jnp.bool_(done % reports.updates == 0)
            state, metrics, failures = call(state, jnp.uint32(updates), afresh)
            # Reading the metrics waits: never is more than one program in flight.
            metrics = {name: float(x) for name, x in parallel.on_host(metrics).items()}
            tally.stop_if_not_finite(failures)
            done, took = done + updates, time.perf_counter() - started
            seconds, most = seconds + took, next_call(updates, took)
        yield (
            state,
            None
            if done < target
            else metrics
            | {
                "updates": done,
                "steps": done * reports.steps,
                "steps_per_second": (done - reported) * reports.steps / seconds,
                "seconds": seconds,
                "compile_seconds": compile_seconds,
            },
        )


def next_call(updates: int, seconds: float) -> int:
    """How many updates take `CALL_SECONDS`, if so many took so long."""
    return max(1, int(updates * min(8.0, CALL_SECONDS / seconds)))
