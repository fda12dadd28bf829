"""The loop on the host: calls of the program, and a report now and then."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer import parallel
from podracer.errors import check_at_least_one
from podracer.metrics import episodes, tally
from podracer.parallel import hosts, watch
from podracer.training import memory


class Reports(NamedTuple):
    """When a run reports: after each `updates`, and at its end.

    With `early` also before the first of these, after 1, 2, 4, 8, ... updates: a long run
    shows soon whether it learns.
    """

    steps: int  # environment steps of an update
    total_updates: int
    updates: int
    early: bool = False

    def next(self, done: int) -> int:
        """The number of updates at the report that follows `done` of them."""
        regular = done - done % self.updates + self.updates
        if self.early and done < self.updates:
            regular = min(2 ** done.bit_length() if done else 1, regular)
        return min(regular, self.total_updates)

    def last(self, done: int) -> int:
        """The number of updates at the last report among the first `done` of them."""
        regular = done - done % self.updates
        if self.early and done and not regular:
            return 2 ** (done.bit_length() - 1)
        return regular


def make_reports(steps: int, total_steps: int, updates: int | None) -> Reports:
    """The reports of a run with `steps` an update, by default (`updates` is None) a hundred
    and a few early ones.

    Raises UserError.
    """
    total_updates = -(-total_steps // steps)
    early = updates is None
    if updates is None:
        updates = max(1, min(total_updates // 100, 4_000_000 // steps))
    check_at_least_one(updates_per_report=updates)
    return Reports(steps, total_updates, updates, early)


def begin(
    programs: Any, *arguments: Any, number: int
) -> tuple[Any, Callable[[], Callable]]:
    """The first state of a run, and what compiles its updates (see `compiling`).

    XLA compiles the first program while Python traces the second.

    Args:
      programs: `training.Programs`.
      *arguments: of the first program, before the indices.
      number: of environments or lifetimes.

    Raises UserError where one of them needs more memory than there is: XLA would hang.
    """
    index = jax.ShapeDtypeStruct((number,), jnp.int32)
    memory.check_program(programs.start, *arguments, index)
    lowered = programs.start.lower(*arguments, index)
    with ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(lowered.compile)
        compile = compiling(programs.call, lowered.out_info)
        start = compiled.result()
    return start(*arguments, jnp.arange(number, dtype=jnp.int32)), compile


def one_run(metrics: Any, failures: Any) -> list[dict[str, float]]:
    """The metrics of a program that is one run; FloatingPointError if it failed."""
    tally.stop_if_not_finite(parallel.on_host(failures))
    row = {name: float(x) for name, x in parallel.on_host(metrics).items()}
    return [episodes.means(row)]


def run(
    compile: Callable[[], Callable],
    state: Any,
    layout: Any,
    reports: Reports,
    restore: Callable[[Any, Any], Any] | None,
    stopped: Callable[[], bool],
) -> Iterator[tuple[Any, dict[str, float] | None]]:
    """The reports of one run; for the other arguments see `iterate`.

    `restore` is (initial state, its layout) -> the state to resume from.
    """
    if restore:
        state = restore(state, layout)
    done = int(parallel.on_host(state.updates))
    runs = iterate(compile, state, done, reports, stopped)
    return ((state, rows and rows[0]) for state, rows in parallel.checked(runs))


def compiling(call: Callable, state: Any) -> Callable[[], Callable]:
    """Compiles the program `call` when it is called; of `state`, shapes are enough.

    Traced before a run has a folder, so that an agent can refuse its arguments. Both raise
    UserError where the program needs more memory than there is.
    """
    arguments = state, jnp.uint32(1), jnp.bool_(True)
    memory.check_program(call, *arguments)
    lowered = call.lower(*arguments)
    cores = len(jax.tree.leaves(state)[0].sharding.addressable_devices)

    def compile() -> Callable:
        program = lowered.compile()
        memory.check_compiled(program, cores)
        return program

    return compile


def iterate(
    compile: Callable[[], Callable],
    state: Any,
    done: int,
    reports: Reports,
    stopped: Callable[[], bool],
    read: Callable[[Any, Any], list[dict[str, float]]] = one_run,
) -> Iterator[tuple[Any, list[dict[str, float]] | None]]:
    """Yields (state, metrics of each run) at each report, in calls of about a second.

    Args:
      compile: makes the program, (state, updates, report) -> (state, metrics, failures).
      state: the first one.
      done: its number of updates.
      reports: when to yield.
      stopped: if true, ends the run; between two reports, or before the
        first, with metrics None.
      read: (metrics, failures) -> the metrics of each run.
    """
    started = time.perf_counter()
    call = compile()
    compile_seconds = time.perf_counter() - started
    most, ends = hosts.agree(1, stopped())
    if ends and done < reports.total_updates:
        yield state, None  # asked while it compiled: what it starts from can be saved
    while done < reports.total_updates and not ends:
        reported, seconds, target = done, 0.0, reports.next(done)
        while done < target and not ends:
            updates, started = min(most, target - done), time.perf_counter()
            report = jnp.bool_(done + updates == target)
            state, metrics, failures = call(state, jnp.uint32(updates), report)
            # Reading the metrics waits: no more than one program is ever in flight.
            rows = read(metrics, failures)
            done, took = done + updates, time.perf_counter() - started
            seconds += took
            most, ends = hosts.agree(hosts.in_a_second(updates, took), stopped())
        speed = {
            "updates": done,
            "steps": done * reports.steps,
            "steps_per_second": (done - reported) * reports.steps / max(seconds, 1e-9),
            "seconds": seconds,
            "compile_seconds": compile_seconds,
        }
        if done < target:
            yield state, None
        else:
            # A resumed run counts its episodes since the report before.
            steps = (done - reports.last(reported)) * reports.steps
            share = partial(episodes.finished_share, steps=steps)
            yield state, [row | speed | share(row) for row in rows]
        most, ends = hosts.agree(most, ends or stopped())
    watch.at_rest()
