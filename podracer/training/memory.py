"""Whether a run can fit into this host's memory: asked before compilation, which is long.

`check_program` asks it of every program that a run starts, whatever takes the memory: an
environment's state, a trajectory, orders of epochs, what a gradient keeps of many lifetimes.
A command then says which of its fields that is (`naming`). What allocates before a program
is traced, or is no program's, has a check of its own below.
"""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from podracer.agent import Agent, Trajectory
from podracer.command.flags import Flat
from podracer.errors import UserError
from podracer.parallel import hosts
from podracer.plan import compiled
from podracer.transformations import replay

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
NOTICEABLE = 0.25  # half of a field to blame saves more than this share of the memory


def available() -> int | None:
    """Bytes that this host's devices can still hold; None where nobody says."""
    devices = jax.local_devices()
    if devices[0].platform != "cpu":
        limits = [(x.memory_stats() or {}).get("bytes_limit") for x in devices]
        return sum(limits) if all(limits) else None
    limits = [x for x in (_of_machine(), _of_container()) if x is not None]
    return min(limits, default=None)


def _of_machine() -> int | None:
    try:
        lines = dict(re.findall(r"(\w+):\s+(\d+) kB", MEMINFO.read_text()))
        return 1024 * (int(lines["MemAvailable"]) + int(lines.get("SwapFree", 0)))
    except (OSError, KeyError):
        pass
    try:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _of_container() -> int | None:
    """What a control group (version 2) leaves."""
    try:
        most, used = (
            (CGROUP / x).read_text().strip() for x in ("memory.max", "memory.current")
        )
        return None if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return None


def size_of(shapes: Any) -> int:
    """Bytes of a pytree of arrays, their shapes or specs."""
    return sum(
        int(np.prod([*map(int, x.shape)], dtype=object)) * x.dtype.itemsize
        for x in jax.tree.leaves(shapes)
    )


class TooLarge(UserError):
    """A program of the run needs more memory than there is."""

    def __init__(self, needed: int, most: int):
        super().__init__(
            f"the run needs at least {compiled.size(needed)} of memory, and {compiled.size(most)} are "
            "available: choose a smaller batch_size, unroll_length or network"
        )
        self.needed, self.most = needed, most


def check_program(program: Callable, *arguments: Any) -> None:
    """Raises TooLarge where a compiled function needs more memory than there is.

    It is traced, which its first call would do, too, and neither compiled nor run.
    """
    check_bytes(of_program(program, *arguments))


def check_compiled(program: Any, cores: int) -> None:
    """Raises TooLarge where a compiled program, not run yet, needs more memory than is left.

    Its arguments are there already. This is exact, and comes after minutes of compilation.
    `cores` is the number of this host's that run it.
    """
    analysis = program.memory_analysis()
    if analysis is None:  # of a backend that does not say
        return
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    each = analysis.temp_size_in_bytes + max(0, results)
    check_bytes(each * cores)


def check_bytes(needed: int) -> None:
    """Raises TooLarge where that is more memory than there is."""
    most = available()
    if most is not None and needed > most:
        raise TooLarge(needed, most)


def of_program(program: Callable, *arguments: Any) -> int:
    """Bytes that this host needs at least for a compiled function of these arguments.

    They are the larger of its results and of what a loop in it reads or writes, which no
    compiler leaves out; what it keeps besides may double that.

    Args:
      program: the result of `jax.jit`; it may be replicated over cores.
      *arguments: arrays or their shapes.
    """
    traced = program.trace(*arguments)
    whole = max(size_of(traced.out_info), _of_loops(traced.jaxpr.jaxpr))
    return whole // hosts.number_of()


def _of_loops(jaxpr: Any) -> int:
    """Bytes of the largest loop's arrays, over all cores."""
    most = 0
    for equation in jaxpr.eqns:
        needed = max(map(_of_loops, _programs_in(equation)), default=0)
        if equation.primitive.name == "shard_map":  # of one core
            results = [x.aval for x in equation.params["jaxpr"].outvars]
            needed = max(needed, size_of(results)) * equation.params["mesh"].size
        if equation.primitive.name in ("scan", "while"):
            arrays = {x for x in equation.invars if isinstance(x, core.Var)}
            # The others are the next step's, written in place.
            stacked = equation.outvars[
                equation.params.get("num_carry", len(jaxpr.eqns)) :
            ]
            needed = max(needed, size_of([x.aval for x in (*arrays, *stacked)]))
        most = max(most, needed)
    return most


def _programs_in(equation: Any) -> list[Any]:
    """The loop bodies, branches and functions of an equation of a traced program."""
    parts = jax.tree.leaves([*equation.params.values()])
    kinds = core.Jaxpr | core.ClosedJaxpr
    return [getattr(x, "jaxpr", x) for x in parts if isinstance(x, kinds)]


@contextlib.contextmanager
def naming(config: Any, estimate: Callable[[Any], int]) -> Iterator[None]:
    """Says of a TooLarge which field of the configuration is too large, if one is.

    Args:
      config: the command's, a dataclass of dataclasses.
      estimate: (such a configuration) -> bytes of its programs.
    """
    try:
        yield
    except TooLarge as error:
        needed, most = error.needed, error.most
        estimated = estimate(config)
        by_size = sorted(_integers(config), key=lambda x: -x.value)
        for name, value, replaced in by_size:
            try:
                saved = 1 - estimate(replaced(value // 2)) / estimated
            except ValueError:  # for example a batch that the cores cannot share
                continue
            if saved > NOTICEABLE:
                share = (1 - most / needed) / saved  # of that half, to be saved
                fits = value - int(share * (value - value // 2))
                raise UserError(
                    f"{name} is {value}, which needs at least {compiled.size(needed)} of memory, "
                    f"and {compiled.size(most)} are available: choose a smaller one, about "
                    f"{max(1, fits)} at most"
                ) from None
        raise


class _Integer(NamedTuple):
    """A field of a configuration."""

    name: str  # as flags and errors have it
    value: int  # at least 2
    replaced: Callable[[int], Any]  # (another value) -> the whole configuration


def _integers(config: Any, prefix: str = "") -> Iterator[_Integer]:
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)

        def replaced(value: Any, name: str = name) -> Any:
            return dataclasses.replace(config, **{name: value})

        if dataclasses.is_dataclass(value):
            flat = field.type == Flat[type(value)]
            inner = prefix if flat else f"{prefix}{name}."
            for x in _integers(value, inner):
                whole = functools.partial(_composed, replaced, x.replaced)
                yield x._replace(replaced=whole)
        elif type(value) is int and value > 1:
            yield _Integer(f"{prefix}{name}", value, replaced)


def _composed(outer: Callable, inner: Callable, value: Any) -> Any:
    return outer(inner(value))


def of_learner(agent: Agent, copies: int, most: int | None) -> int:
    """Bytes of the shared part of its learner state, which has one copy on each core.

    Raises UserError where that is more than `most`, if that is known: XLA would hang in
    the allocation.
    """
    key = jax.eval_shape(jax.random.key, 0)
    held = copies * size_of(jax.eval_shape(agent.initial_learner_state, key).shared)
    if most is not None and held > most:
        raise UserError(
            f"the agent's parameters and optimizer need {compiled.size(held)} of memory in "
            f"{copies} {'copy' if copies == 1 else 'copies'}, and {compiled.size(most)} are "
            "available: choose a smaller network"
        )
    return held


def of_update(
    agent: Agent, observation_spec: Any, unroll_length: int, batch_size: int
) -> int:
    """Bytes of a learner's update on one core, from a trajectory of these sizes."""
    one = replay.shapes(agent, observation_spec, unroll_length)

    def whole(axis: int, tree: Any) -> Any:
        def of(x: Any) -> Any:
            shape = *x.shape[:axis], batch_size, *x.shape[axis + 1 :]
            return jax.ShapeDtypeStruct(shape, x.dtype)

        return jax.tree.map(of, tree)

    trajectory = Trajectory(*(whole(1, x) for x in one[:2]), whole(0, one.actor_state))
    key = jax.eval_shape(jax.random.key, 0)
    state = jax.eval_shape(agent.initial_learner_state, key)
    return of_program(jax.jit(agent.learner_step), key, state, trajectory)


def check(
    batch_size: int,
    steps: int,
    observation_spec: Any,
    besides: int = 0,
) -> None:
    """Raises UserError where a run needs more memory than there is; says how much.

    Args:
      batch_size: number of environments of this host.
      steps: observations of each of them that are held at a time.
      observation_spec: of an environment.
      besides: bytes that it holds whatever the batch, fewer than there are.
    """
    most = available()
    if most is None:
        return
    most = max(1, most - besides)
    needed = batch_size * steps * max(1, size_of(observation_spec))
    if needed > most:
        fits = int(batch_size * most / needed)
        raise UserError(
            f"batch_size is {batch_size}, which needs at least {compiled.size(needed)} of memory, "
            f"and {compiled.size(most)} are available: choose a batch_size below {max(2, fits)}, or "
            "a shorter unroll_length"
        )


class Replayed(NamedTuple):
    """What replay holds: `capacity` trajectories."""

    capacity: int
    each: int  # bytes of a trajectory, and of its mass if it has one

    @property
    def size(self) -> int:
        """Bytes, over all learner cores."""
        return self.capacity * self.each

    def check(self, most: int | None, parts: int = 1, runs: int = 1) -> int:
        """Bytes of one of `parts` of it, for that many runs side by side.

        Raises UserError where that is more than `most`, if that is known.
        """
        held = self.size * runs // parts
        if most is not None and held > most:
            raise UserError(
                f"replay.capacity is {self.capacity}, which needs {compiled.size(held)} of memory "
                f"({self.each:,} bytes a trajectory), and {compiled.size(most)} are available: "
                f"choose a capacity below {max(2, int(self.capacity * most / held))}, or a "
                "shorter unroll_length"
            )
        return held

    def planned(self, most: int | None, cores: int, runs: int = 1) -> list[str]:
        """A line on a core's part, if there is replay. Raises UserError as `check`."""
        part = compiled.size(self.check(most, cores, runs))
        where = f" on each of {cores} learner cores" if cores > 1 else ""
        line = f"replay: {self.capacity:,} trajectories of {self.each:,} bytes, {part}"
        return [line + where] if self.capacity else []


def replayed(agent: Agent, observation_spec: Any, config: Any) -> Replayed:
    """What replay holds; `config` is of a command, `agent` with or without replay."""
    capacity = config.replay.capacity
    if not capacity:
        return Replayed(0, 0)
    kind = replay.shapes(agent, observation_spec, config.unroll_length)
    mass = 4 if config.replay.priority else 0
    return Replayed(capacity, size_of(kind) + mass)
