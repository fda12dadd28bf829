"""Lineages: whose learner each member of a population went on with, from its rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from podracer import metrics
from podracer.errors import UserError
from podracer.runs import run_folder

PREFIX = "population/"  # of what a row says about its member
INTERVAL, PARENT = PREFIX + "interval", PREFIX + "parent"

Rows = list[dict[str, float]]


class History(NamedTuple):
    """What all members of a population have recorded."""

    folders: list[Path]  # [S]
    rows: list[dict[int, Rows]]  # [S] by interval, where the member has any
    starts: dict[int, float]  # environment steps of a member before each interval


class Link(NamedTuple):
    """An interval in the life of a learner."""

    steps: float  # environment steps before it
    member: int  # where it was
    hyperparameters: dict[str, float]


def is_population(folder: Path) -> bool:
    """Whether the members of a population lie in a folder. Raises UserError."""
    if not (folder / run_folder.TOGETHER).exists():
        return False
    description = run_folder.load_config(folder, "train", name=run_folder.TOGETHER)
    return bool(description["config"]["train"].get("population"))


def read(folder: Path) -> History:
    """The history of a population's folder. Raises UserError where there is none."""
    if not is_population(folder):
        raise UserError(
            f"{folder}: holds no population; train one with --population, or name another "
            "folder"
        )
    config = run_folder.load_config(folder, "train", name=run_folder.TOGETHER)
    count = config["config"]["train"]["population"]
    folders = [folder / f"member-{i}" for i in range(count)]
    every = [_by_interval(x) for x in folders]
    known = sorted({i for rows in every for i in rows})
    if not known:
        raise UserError(f"{folder}: no member has reported yet")
    ends = {
        i: max(row["steps"] for rows in every for row in rows.get(i, ())) for i in known
    }
    starts = {i: ends.get(i - 1, 0.0) for i in known}
    return History(folders, every, starts)


def _by_interval(folder: Path) -> dict[int, Rows]:
    path, rows = folder / run_folder.METRICS, {}
    for row in metrics.read(path) if path.exists() else ():
        rows.setdefault(int(row.get(INTERVAL, 0)), []).append(row)
    return rows


def best(history: History) -> int:
    """The member with the highest mean return in the last interval.

    Raises UserError where none has finished an episode in it.
    """
    last = max(history.starts)
    scores = [score(rows.get(last, ())) for rows in history.rows]
    if not np.isfinite(scores).any():
        raise UserError(
            f"{history.folders[0].parent}: no member has finished an episode in the last "
            "interval: choose longer ones with --pbt.interval"
        )
    return int(np.nanargmax(scores))


def score(rows: Rows) -> float:
    """The mean return of the episodes that finished; NaN if none did."""
    known = [x for x in rows if x["episodes"]]
    if not known:
        return float("nan")
    returns, counts = ([x[k] for x in known] for k in ("episode_return", "episodes"))
    return float(np.average(returns, weights=counts))


def of_member(history: History, member: int) -> list[Link]:
    """The life of the learner that a member has at the end, from its first interval on."""
    links = []
    for interval in sorted(history.starts, reverse=True):
        rows = history.rows[member].get(interval)
        if not rows:  # it had failed, and went on with its own learner
            continue
        steps, values = history.starts[interval], hyperparameters(rows[-1])
        links.append(Link(steps, member, values))
        parent = int(rows[-1].get(PARENT, -1))
        member = member if parent < 0 else parent
    return links[::-1]


def of_folder(folder: Path) -> list[Link]:
    """The life of the learner of a population's best member, or of the member in `folder`.

    Raises UserError.
    """
    name, _, number = folder.absolute().name.rpartition("-")
    if (
        name == "member"
        and number.isdigit()
        and is_population(folder.absolute().parent)
    ):
        return of_member(read(folder.absolute().parent), int(number))
    history = read(folder)
    return of_member(history, best(history))


def hyperparameters(row: Mapping[str, float]) -> dict[str, float]:
    """Those of a row."""
    return {
        name.removeprefix(PREFIX): x
        for name, x in row.items()
        if name.startswith(PREFIX) and name not in (INTERVAL, PARENT)
    }
