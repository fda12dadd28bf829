"""Whether a run can fit into this host's memory: asked before compilation, which is long."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from podracer.agent import Agent
from podracer.errors import UserError
from podracer.transformations import replay

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
SMALL = 0.01  # share of the memory below which nothing is traced to find out


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


def of_learner(agent: Agent, copies: int, most: int | None) -> int:
    """Bytes of the shared part of its learner state, which has one copy on each core.

    Raises UserError where that is more than `most`, if that is known: XLA would hang in
    the allocation.
    """
    key = jax.eval_shape(jax.random.key, 0)
    held = copies * size_of(jax.eval_shape(agent.initial_learner_state, key).shared)
    if most is not None and held > most:
        raise UserError(
            f"the agent's parameters and optimizer need {_size(held)} of memory in "
            f"{copies} {'copy' if copies == 1 else 'copies'}, and {_size(most)} are "
            "available: choose a smaller network"
        )
    return held


def check(
    batch_size: int,
    steps: int,
    observation_spec: Any,
    estimate: Callable[[], int] | None = None,
    besides: int = 0,
) -> None:
    """Raises UserError where a run needs more memory than there is; says how much.

    Args:
      batch_size: number of environments of this host.
      steps: observations of each of them that are held at a time.
      observation_spec: of an environment.
      estimate: bytes that the run holds at least, asked only where the observations alone
        take a noticeable part of the memory.
      besides: bytes that it holds whatever the batch, fewer than there are.
    """
    most = available()
    if most is None:
        return
    most = max(1, most - besides)
    needed = batch_size * steps * max(1, size_of(observation_spec))
    if SMALL * most < needed <= most and estimate is not None:
        needed = max(needed, estimate())
    if needed > most:
        fits = int(batch_size * most / needed)
        raise UserError(
            f"batch_size is {batch_size}, which needs at least {_size(needed)} of memory, "
            f"and {_size(most)} are available: choose a batch_size below {max(2, fits)}, or "
            "a shorter unroll_length"
        )


class Replayed(NamedTuple):
    """What replay holds: `capacity` trajectories."""

    capacity: int
    each: int  # bytes of a trajectory

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
                f"replay.capacity is {self.capacity}, which needs {_size(held)} of memory "
                f"({self.each:,} bytes a trajectory), and {_size(most)} are available: "
                f"choose a capacity below {max(2, int(self.capacity * most / held))}, or a "
                "shorter unroll_length"
            )
        return held

    def planned(self, most: int, cores: int, runs: int = 1) -> list[str]:
        """A line on a core's part, if there is replay. Raises UserError as `check`."""
        part = self.check(most, cores, runs)
        line = (
            f"replay: {self.capacity:,} trajectories of {self.each:,} bytes, "
            f"{_size(part)} on each of {cores} learner cores"
        )
        return [line] if self.capacity else []


def replayed(agent: Agent, observation_spec: Any, config: Any) -> Replayed:
    """What replay holds; `config` is of a command, `agent` with or without replay."""
    capacity = config.replay.capacity
    if not capacity:
        return Replayed(0, 0)
    kind = replay.shapes(agent, observation_spec, config.unroll_length)
    return Replayed(capacity, size_of(kind))


def _size(count: int) -> str:
    size = count / 2**30
    return f"{size:,.0f} GiB" if size >= 1000 else f"{size:.3g} GiB"
