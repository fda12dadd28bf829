"""Lineages: whose learner each member of a population copied, read from its rows."""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from podracer import metrics
from podracer.command import spaces
from podracer.errors import UserError
from podracer.metrics import human
from podracer.runs import run_folder

PREFIX = "population/"  # of what a row says about its member
INTERVAL, PARENT = PREFIX + "interval", PREFIX + "parent"
MOST_MEMBERS = 2**16  # more in a configuration are damage

Rows = list[dict[str, float]]


class History(NamedTuple):
    """What all members of a population have recorded."""

    folders: list[Path]  # [S]
    rows: list[dict[int, Rows]]  # [S] by interval, where the member has any
    starts: dict[int, float]  # environment steps of a member before each interval
    ranges: dict[str, spaces.Range]  # of its hyperparameters
    adapts: bool  # members take over others' learners
    failed: frozenset[int]  # members that ended so


class Link(NamedTuple):
    """An interval in the life of a learner."""

    steps: float  # environment steps before it
    member: int  # where it was
    hyperparameters: dict[str, float]


class Stay(NamedTuple):
    """A learner in a member for an interval that has rows."""

    interval: int
    member: int


class Life(NamedTuple):
    """A learner in a member, until the member copies another."""

    parent: int | None  # the member that it was taken from
    stays: list[Stay]


class _Settings(NamedTuple):
    """Of a population."""

    members: int
    ranges: dict[str, spaces.Range]
    adapts: bool
    interval: int  # environment steps, about
    total_steps: int


def is_population(folder: Path) -> bool:
    """Whether the members of a population lie in a folder. Raises UserError."""
    if not os.path.exists(folder / run_folder.TOGETHER):
        return False
    description = run_folder.load_config(folder, "train", name=run_folder.TOGETHER)
    return bool(description["config"]["train"].get("population"))


def is_adapted(config: Mapping[str, Any]) -> bool:
    """Whether a run is a member whose learner may be another's, by its configuration."""
    return bool(config.get("population"))


def read(folder: Path, say: Callable[[str], None] = lambda line: None) -> History:
    """The history of a population's folder. Raises UserError where there is none.

    A control, whose members keep their hyperparameters, has intervals, too: those after
    which it would have adapted. `say` prints a line about rows that cannot be read, and
    about members that have none.
    """
    if not is_population(folder):
        alone = folder / run_folder.CONFIG
        one = os.path.exists(alone) and run_folder.load_config(folder)["config"]
        if one and is_adapted(one):
            raise UserError(
                f"{folder}: a single member, whose history is in the rows of all: name the "
                "folder of its population"
            )
        raise UserError(
            f"{folder}: holds no population; train one with --population, or name another "
            "folder"
        )
    settings = _settings(folder)
    folders = [folder / f"member-{i}" for i in range(settings.members)]
    every = [_by_interval(x, settings, say) for x in folders]
    known = sorted({i for rows in every for i in rows})
    if not known:
        raise UserError(f"{folder}: no member has reported yet: wait for a report")
    if silent := [x.name for x, rows in zip(folders, every, strict=True) if not rows]:
        say(f"{folder}: no rows of {', '.join(silent)}")
    starts, steps = {}, 0.0
    for i in known:
        starts[i] = steps
        steps = max(row["steps"] for rows in every for row in rows.get(i, ()))
    ended = [run_folder.load_state(x).get("state") for x in folders]
    failed = frozenset(i for i, state in enumerate(ended) if state == "failed")
    return History(folders, every, starts, settings.ranges, settings.adapts, failed)


def _settings(folder: Path) -> _Settings:
    """Raises UserError where the configuration is damaged."""
    config = run_folder.load_config(folder, "train", name=run_folder.TOGETHER)
    try:
        train = config["config"]["train"]
        pbt, count, total = train["pbt"], train["population"], train["total_steps"]
        interval = pbt["interval"] or math.ceil(total / 20)  # as `adaptation.of_flags`
        if not (type(count) is int and 0 < count <= MOST_MEMBERS and interval >= 1):
            raise ValueError
        ranges = spaces.ranges(pbt["fields"], "pbt.fields")
        return _Settings(count, ranges, bool(pbt["exploit"]), interval, total)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"{folder / run_folder.TOGETHER}: damaged, or not the configuration of a "
            "population"
        ) from None


def _by_interval(
    folder: Path, settings: _Settings, say: Callable[[str], None]
) -> dict[int, Rows]:
    path, rows = folder / run_folder.METRICS, {}
    if not os.path.exists(path):
        return rows
    own = {} if settings.adapts else _initial(folder, settings)
    damaged = 0
    for row in metrics.read(path, say):
        if not settings.adapts:
            row = row | own | {INTERVAL: _interval(row["steps"], settings), PARENT: -1}
        if row.get(INTERVAL) is None or row.get(PARENT) is None:
            damaged += 1
        else:
            rows.setdefault(int(row[INTERVAL]), []).append(row)
    if damaged:
        say(
            f"{path}: left out {damaged} row{'s' * (damaged > 1)} without their interval and parent"
        )
    return rows


def _initial(folder: Path, settings: _Settings) -> dict[str, float]:
    """A member's own hyperparameters, as rows name them."""
    agent = run_folder.load_config(folder, "train")["config"]["train"].get("agent")
    values = agent if isinstance(agent, dict) else {}
    known = {x: values.get(x) for x in settings.ranges}
    return {PREFIX + x: y for x, y in known.items() if isinstance(y, float | int)}


def _interval(steps: float, settings: _Settings) -> int:
    """The number of adaptations before a row, as `adaptation.Updates.number`."""
    last = max(0, settings.total_steps - settings.interval)
    return int(min(steps - 1, last) // settings.interval)


def scores(history: History) -> np.ndarray:
    """[S] mean returns in the newest interval in which an episode finished.

    NaN where a member has finished none, and -inf where it has failed.
    """
    found = np.full(len(history.rows), np.nan)
    for interval in sorted(history.starts, reverse=True):
        found = np.array([score(rows.get(interval, [])) for rows in history.rows])
        found[[*history.failed]] = -np.inf
        if np.isfinite(found).any():
            break
    return found


def best(history: History) -> int:
    """The member with the highest of `scores`. Raises UserError where none has any."""
    member = chosen(history)
    if member is None:
        raise UserError(
            f"{history.folders[0].parent}: no member has a mean return: all have failed, or "
            "none has finished an episode; train longer"
        )
    return member


def chosen(history: History) -> int | None:
    """The same, or None."""
    found = scores(history)
    return int(np.nanargmax(found)) if np.isfinite(found).any() else None


def score(rows: Rows) -> float:
    """The mean return of the episodes that finished; NaN if none did."""
    pairs = [(x.get("episode_return"), x.get("episodes")) for x in rows]
    known = [(x, count) for x, count in pairs if x is not None and (count or 0) > 0]
    if not known:
        return float("nan")
    returns, counts = zip(*known, strict=True)
    return float(np.average(returns, weights=counts))


def of_member(history: History, member: int) -> list[Link]:
    """The life of the learner that a member has at the end, from its first interval on.

    Raises UserError where the rows of a member that it was copied from are missing.
    """
    return [
        Link(
            history.starts[interval],
            where,
            hyperparameters(history.rows[where][interval][-1]),
        )
        for interval, where in way(history, member)
    ]


def way(history: History, member: int) -> list[Stay]:
    """The members that held the learner which a member has at the end. Raises
    UserError, see above."""
    stays = []
    for interval in sorted(history.starts, reverse=True):
        rows = history.rows[member].get(interval)
        if not rows:  # it had failed, and went on with its own learner
            continue
        stays.append(Stay(interval, member))
        parent = int(rows[-1][PARENT])
        if parent < 0:
            continue
        of_parent = history.rows[parent] if parent < len(history.rows) else {}
        if not any(i < interval for i in of_parent):
            raise UserError(
                f"{history.folders[member]}: it took over the learner of member-{parent} "
                f"after {history.starts[interval]:,.0f} steps, of which there are no rows "
                "before: copy the population's whole folder"
            )
        member = parent
    return stays[::-1]


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


def lives(history: History) -> Iterator[Life]:
    """Of all members' learners, a member's in order of time."""
    for member, rows in enumerate(history.rows):
        life = None
        for interval in sorted(rows):
            parent = int(rows[interval][-1][PARENT])
            if life is None or parent >= 0:
                if life:
                    yield life
                life = Life(parent if parent >= 0 else None, [])
            life.stays.append(Stay(interval, member))
        if life:
            yield life


def takeovers(history: History) -> int:
    """The number of times that a member copied another's learner."""
    every = (x for rows in history.rows for x in rows.values())
    return sum(int(rows[-1][PARENT]) >= 0 for rows in every)


def described(history: History) -> list[str]:
    """Lines: the best member, how often learners were copied, and the schedule's end.

    Raises UserError where its lineage is not whole.
    """
    count = takeovers(history)
    took = f"learners were taken over {count} time{'s' * (count != 1)}"
    if not history.adapts:
        took = "a control: no learner was taken over"
    member = chosen(history)
    if member is None:
        return [f"no member has a mean return; {took}"]
    moves = sum(
        a.member != b.member for a, b in itertools.pairwise(way(history, member))
    )
    if count:
        took += f", {moves} of them on its way"
    final = of_member(history, member)[-1].hyperparameters
    values = (f"{x} {final[x]:.3g}" for x in history.ranges if x in final)
    mean = human(scores(history)[member])
    return [
        f"best: member-{member}, mean return {mean} in the last interval; {took}",
        f"at the end: {', '.join(values)}",
    ]


def hyperparameters(row: Mapping[str, float | None]) -> dict[str, float]:
    """Those of a row; NaN where it has no number."""
    return {
        name.removeprefix(PREFIX): float("nan") if x is None else x
        for name, x in row.items()
        if name.startswith(PREFIX) and name not in (INTERVAL, PARENT)
    }
