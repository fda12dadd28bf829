"""Many runs: finding them, listing them, and reading their curves."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from podracer import metrics
from podracer.errors import UserError, nearest
from podracer.metrics import human
from podracer.runs import run_folder

# The folder is last: a terminal breaks a long line, and its path can be copied whole.
COLUMNS = ("state", "agent", "env", "seed", "steps", "return", "age", "run")
ABSENT = "-"


class Run(NamedTuple):
    """A run folder and its configuration."""

    folder: Path
    config: dict[str, Any]  # agent, env: names; train: the command's configuration
    problem: str | None = None  # why there is no configuration


def find(folders: Sequence[str | Path]) -> list[Run]:
    """The runs in these folders, each once: a folder is a run, or contains runs.

    Those with a damaged configuration are named and left out. Raises UserError for a
    folder without a run.
    """
    runs: dict[Path, Run] = {}
    for folder in map(Path, folders):
        inside = find_all(folder)
        if not inside:
            raise UserError(
                f"{folder}: holds no run; train one, or name another folder"
            )
        for run in inside:
            runs.setdefault(run.folder.resolve(), run)
    for run in runs.values():
        if run.problem:
            print(f"{run.problem}; left out")
    return [run for run in runs.values() if not run.problem]


def find_all(folder: Path) -> list[Run]:
    """The runs in a folder, or the run that it is, with those that are damaged.

    Raises UserError if it is neither a folder nor a run.
    """
    # Those of os.path are false, not an error, where a name is too long.
    if os.path.exists(folder / run_folder.CONFIG) or not os.path.isdir(folder):
        return [Run(folder, run_folder.load_config(folder)["config"])]
    places = ("*", "*/*")  # runs trained in one program share a folder
    return [
        _run(path.parent)
        for path in sorted(
            x for place in places for x in folder.glob(f"{place}/{run_folder.CONFIG}")
        )
    ]


def _run(folder: Path) -> Run:
    try:
        return Run(folder, run_folder.load_config(folder)["config"])
    except UserError as error:
        return Run(folder, {}, str(error))


def field(run: Run, name: str) -> Any:
    """A value of a run's configuration: `agent`, `seed`, `agent.learning_rate`, ...

    Raises UserError for an unknown field.
    """
    fields = dict(_flat(run.config.get("train", {})))
    fields |= {name: x for name, x in run.config.items() if name != "train"}
    try:
        return fields[name.replace("-", "_")]
    except KeyError:
        raise UserError(
            f"{run.folder}: its configuration has no {name!r}{nearest(name, fields)}"
        ) from None


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def points(run: Run, x: str, y: str) -> np.ndarray:
    """[x, y, weight] of each row that has a value of y, as a [N, 3] array.

    Args:
      run: the run to read.
      x: "steps", or "seconds" of training without compilation.
      y: a metric of `podracer.metrics`.

    Raises:
      UserError: the rows cannot be read.
    """
    path = run.folder / run_folder.METRICS
    if not path.exists():
        return np.empty((0, 3))
    try:
        return to_points(metrics.read(path, print), x, y)
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error


def to_points(rows, x: str, y: str) -> np.ndarray:
    """The same for rows in memory."""
    values, seconds = [], 0.0
    for row in rows:
        seconds += row.get("seconds") or 0.0
        value = row.get(y)
        if value is not None and np.isfinite(value):
            weight = max(row.get(metrics.WEIGHT.get(y)) or 1, 1e-9)
            values.append((seconds if x == "seconds" else row["steps"], value, weight))
    return np.array(values, float).reshape(-1, 3)


def table(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """One line of COLUMNS per run, oldest first.

    Runs of one program that differ in their seeds alone, and have come equally far, are one
    line: the mean of their returns.
    """
    groups: dict[Any, list[_Listed]] = {}
    for run in runs:
        listed = _Listed(run, run_folder.load_state(run.folder), _newest(run))
        groups.setdefault(_group(listed), []).append(listed)
    ordered = sorted(
        groups.values(), key=lambda group: group[0].state.get("started", 0)
    )
    return [_line(group) for group in ordered]


class _Listed(NamedTuple):
    """A run, and what its files say at the moment."""

    run: Run
    state: dict[str, Any]
    newest: dict[str, Any]  # values of metrics


def _newest(run: Run) -> dict[str, Any]:
    try:
        return metrics.last(run.folder / run_folder.METRICS)
    except OSError:
        return {}  # a run that cannot be read must not hide the others


def _group(listed: _Listed) -> Any:
    """Equal for the runs that share a line."""
    run, state, newest = listed
    name, seed, _ = run.folder.name.rpartition("seed-")
    together = seed and (run.folder.parent / run_folder.TOGETHER).exists()
    if run.problem or not together:
        return run.folder
    return run.folder.parent, name, state.get("state"), newest.get("steps")


def _line(group: Sequence[_Listed]) -> tuple[str, ...]:
    run, state, newest = group[0]
    returns = [x.newest.get("episode_return") for x in group]
    known = [x for x in returns if x is not None]
    steps, mean = newest.get("steps"), sum(known) / len(known) if known else None
    cells = (
        "damaged" if run.problem else state.get("state", "unknown"),
        *(str(run.config.get(name, ABSENT)) for name in ("agent", "env")),
        _seeds([x.run.config.get("train", {}).get("seed") for x in group]),
        *(ABSENT if x is None else human(x) for x in (steps, mean)),
        _age(time.time() - state["started"]) if "started" in state else ABSENT,
        _path([x.run.folder for x in group]),
    )
    return tuple(map(printable, cells))


def _seeds(seeds: Sequence[int | None]) -> str:
    """7, 0-3 or 0,2,5."""
    known = sorted(x for x in seeds if x is not None)
    if len(known) > 1 and known == [*range(known[0], known[-1] + 1)]:
        return f"{known[0]}-{known[-1]}"
    return ",".join(map(str, known)) or ABSENT


def _path(folders: Sequence[Path]) -> str:
    """Of a group a pattern that a shell expands to all of them."""
    if len(folders) == 1:
        return str(folders[0])
    name, seed, _ = folders[0].name.rpartition("seed-")
    return str(folders[0].parent / f"{name}{seed}*")


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first one is its head: as wide as its cells, no wider."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(f"{x:<{n}}" for x, n in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


def printable(text: str) -> str:
    """The same, with escapes for what a terminal would obey or no encoding can write."""
    return "".join(
        x if x.isprintable() else x.encode("unicode_escape").decode() for x in text
    )


def _age(seconds: float) -> str:
    """A duration as one number and its unit: 12s, 5m, 3h, 8d.

    ABSENT where it is below zero: the run began by another machine's clock.
    """
    if seconds < 0:
        return ABSENT
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
