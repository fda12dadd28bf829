"""Compares runs: groups over seeds, their results, and how they differ."""

import datetime
import itertools
import json
import math
import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from podracer import files, metrics
from podracer.errors import UserError
from podracer.metrics import Recent, human
from podracer.runs import lineage, listing, run_folder
from podracer.runs.evaluation import interval
from podracer.runs.listing import ABSENT, printable

WIDTH = 80  # columns of what is printed
MOST_SHOWN = 32  # letters of a value that is printed
NARROWEST = 8  # columns to which a column of text is cut
MOST_LETTERS = 100  # of a value that is shown
MOST_FIELDS = 200  # that differ and are shown; a folder may come from anyone
MOST_SECONDS = 1e9
# How a run is kept, and what makes several runs: no hyperparameters. Nor is the seed.
KEPT = ("keep", "seed", "seeds", "sweep")
# Where `evaluate` has written, the newest kind first.
EVALUATIONS = (run_folder.EVALUATION, "evaluation.json")


class Mean(NamedTuple):
    """A mean and the ends of its 95 % interval, None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        ends = (self.low, self.high)
        if None in ends:
            return human(self.value)
        return f"{human(self.value)} ({human(self.low)} to {human(self.high)})"


class Compared(NamedTuple):
    """A run, and what it has reached."""

    folder: Path
    config: dict[str, Any]
    command: str
    versions: dict[str, Any]
    fields: dict[str, str]  # what may differ beside the seed, each value as text
    state: str
    points: np.ndarray  # [N, 3]: steps, mean return, episodes
    steps: float | None
    seconds: float | None  # of training, with compilation
    steps_per_second: float | None  # over the whole run, without compilation
    last_return: float | None  # mean of the last 100 episodes
    evaluation: Mean | None  # the newest; its interval is over episodes

    @property
    def agent(self) -> str:
        return str(self.config.get("agent", ABSENT))

    @property
    def env(self) -> str:
        return str(self.config.get("env", ABSENT))


class Group(NamedTuple):
    """Runs that differ in the seed alone."""

    letter: str  # A, B, ..., Z, AA, ...
    runs: list[Compared]
    fields: dict[str, str]  # see `Compared`

    @property
    def title(self) -> str:
        first = self.runs[0]
        return f"{self.letter}: {_short(first.agent)} on {_short(first.env)}"


def find(
    folders: Sequence[str | Path], say: Callable[[str], None] = print
) -> list[Compared]:
    """The runs in these folders, each once; those that are damaged are left out.

    `say` prints a line about each of the latter. Raises UserError for a folder that is
    missing or holds no run, and where no run is left.
    """
    runs: dict[Path, listing.Run] = {}
    for folder in map(Path, folders):
        for run in _inside(folder):
            runs.setdefault(run.folder.resolve(), run)
    compared = []
    for run in runs.values():
        try:
            if run.problem:
                raise UserError(run.problem)
            compared.append(_compared(run, say))
        except UserError as error:
            say(f"{error}; left out")
    if not compared:
        raise UserError(f"{folders[0]}: no run is left to compare: train one")
    return compared


def groups_of(runs: Iterable[Compared]) -> list[Group]:
    """Runs that differ in the seed alone, together, in the order of the first of each."""
    together: dict[str, tuple[list[Compared], dict[str, str]]] = {}
    for run in runs:
        key = json.dumps(run.fields, sort_keys=True)
        together.setdefault(key, ([], run.fields))[0].append(run)
    return [
        Group(letter, *group) for letter, group in zip(_letters(), together.values())
    ]


def mean_return(group: Group) -> Mean | None:
    """Of the runs' last mean returns; the interval is over the runs."""
    return _mean([x.last_return for x in group.runs if x.last_return is not None])


def mean_evaluation(group: Group) -> Mean | None:
    """Of the runs' evaluations; the interval is over the runs, or a single run's own."""
    evaluations = [x.evaluation for x in group.runs if x.evaluation]
    if len(evaluations) == 1:
        return evaluations[0]
    return _mean([x.value for x in evaluations])


def differences(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """Its head, and a row for each field that differs: its name, and a value per group.

    A field that only some groups have, as those of another agent, differs only if its value
    does among these.
    """
    names = dict.fromkeys(name for group in groups for name in group.fields)
    values = {x: [group.fields.get(x) for group in groups] for x in names}
    rows = [
        (name, *(ABSENT if x is None else x for x in row))
        for name, row in values.items()
        if len({*row} - {None}) > 1
    ]
    if len(rows) > MOST_FIELDS:
        more = f"and {len(rows) - MOST_FIELDS} more"
        rows = [*rows[:MOST_FIELDS], (more, *[""] * len(groups))]
    head = ("field", *(group.letter for group in groups))
    return [head, *(tuple(map(_short, row)) for row in rows)]


def group_table(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """A head, and a line per group."""
    evaluated = any(mean_evaluation(group) for group in groups)
    head = ("group", "agent", "env", "runs", "return", *["evaluation"][:evaluated])
    return [head] + [
        (
            group.letter,
            _short(group.runs[0].agent),
            _short(group.runs[0].env),
            str(len(group.runs)),
            str(mean_return(group) or ABSENT),
            *[str(mean_evaluation(group) or ABSENT)][:evaluated],
        )
        for group in groups
    ]


def run_table(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """A head, and a line per run."""
    head = ("group", "run", "state", "steps", "time", "steps/s", "return")
    return [head] + [
        (
            group.letter,
            printable(str(run.folder)),
            run.state,
            _human(run.steps),
            _time(run.seconds),
            _human(run.steps_per_second),
            _human(run.last_return),
        )
        for group in groups
        for run in group.runs
    ]


def notes(groups: Sequence[Group]) -> list[str]:
    """Reasons to doubt a comparison, one line each."""
    return [
        f"{group.letter}: {note}" for group in groups for note in _notes(group.runs)
    ]


def printed(groups: Sequence[Group]) -> list[str]:
    """The comparison as lines of at most `WIDTH` columns, but where notes are longer."""
    lines = listing.aligned(fitted(group_table(groups), (1, 2)))
    lines += ["", *listing.aligned(fitted(run_table(groups), (1,)))]
    rows = differences(groups)
    if len(rows) > 1:
        for part in _parts(rows):
            lines += ["", *listing.aligned(part)]
    elif len(groups) > 1:
        lines += ["", "no hyperparameter differs"]
    return lines + ["", *notes(groups)] * bool(notes(groups))


def fitted(
    table: Sequence[tuple[str, ...]], columns: Sequence[int], width: int = WIDTH
) -> list[tuple[str, ...]]:
    """The table, with cells of these columns cut until it has `width` columns.

    A cell keeps its end, which tells paths apart.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(columns, key=lambda n: widths[n])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return [
        tuple(
            x if len(x) <= n else "…" + x[len(x) - n + 1 :]
            for x, n in zip(row, widths, strict=True)
        )
        for row in table
    ]


def _parts(rows: Sequence[tuple[str, ...]]) -> Iterable[list[tuple[str, ...]]]:
    """The columns of groups in parts that fit, each beside the column of names."""
    columns = [[_short(x, MOST_SHOWN) for x in c] for c in zip(*rows)]
    first, *others = columns
    part: list[list[str]] = []
    for column in others:
        widths = [2 + max(map(len, x)) for x in [*part, column]]
        if part and max(map(len, first)) + sum(widths) > WIDTH:
            yield [*zip(first, *part, strict=True)]
            part = []
        part.append(column)
    yield [*zip(first, *part, strict=True)]


def _inside(folder: Path) -> list[listing.Run]:
    """Of a folder of runs, or the run that it is, damaged or not."""
    try:
        runs = listing.find_all(folder)
    except UserError as error:
        if not os.path.exists(folder / run_folder.CONFIG):
            raise
        runs = [listing.Run(folder, {}, str(error))]
    if not runs:
        raise UserError(f"{folder}: holds no run; train one, or name another folder")
    return runs


def _compared(run: listing.Run, say: Callable[[str], None]) -> Compared:
    path = run.folder / run_folder.METRICS
    try:
        rows = [*metrics.read(path, say)] if path.exists() else []
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
    description = run_folder.load_config(run.folder)
    try:
        fields = _fields(run.config, description["command"])
    except RecursionError:
        raise UserError(
            f"{run.folder / run_folder.CONFIG}: damaged, too deep"
        ) from None
    points = listing.to_points(rows, "steps", "episode_return")
    known = ({"episodes": n, "episode_return": value} for _, value, n in points)
    seconds = sum(row.get("seconds") or 0.0 for row in rows)
    compiling = max((row.get("compile_seconds") or 0.0 for row in rows), default=0.0)
    steps = rows[-1]["steps"] if rows else None
    return Compared(
        run.folder,
        run.config,
        description["command"],
        description["versions"],
        fields,
        run_folder.load_state(run.folder).get("state", "unknown"),
        points,
        steps,
        seconds + compiling if rows else None,
        steps / seconds if steps is not None and seconds > 0 else None,
        Recent(known).mean_return() if len(points) else None,
        evaluation_of(run.folder, str(run.config.get("env"))),
    )


def evaluation_of(folder: Path, env: str, updates: int | None = None) -> Mean | None:
    """The newest result of `evaluate` in whole episodes of `env`, the environment of
    training, for the checkpoint of this many updates or for any; None where there is
    none."""
    for name in EVALUATIONS:
        try:
            text = files.read(folder / name, run_folder.MOST_TEXT).decode()
            lines = text.splitlines() if name.endswith("l") else [text]
            results = [x for line in lines if (x := json.loads(line)).get("episodes")]
        except (OSError, ValueError, RecursionError, AttributeError):
            continue
        results = [
            x
            for x in results
            if x.get("env", env) == env
            and not x.get("differs")
            and not x.get("unfinished")  # episodes that were cut off say little
        ]
        if updates is not None:
            results = [x for x in results if _checkpoint(x) == updates]
        if not results:
            continue
        value, low, high = (
            results[-1].get(x) for x in ("episode_return", "low", "high")
        )
        if _is_number(value):
            has_ends = _is_number(low) and _is_number(high)
            return Mean(value, *((low, high) if has_ends else ()))
    return None


def _checkpoint(result: dict[str, Any]) -> Any:
    """Number of updates; older versions have it among what was asked for."""
    asked = result.get("asked")
    return result.get(
        "checkpoint", asked.get("checkpoint") if isinstance(asked, dict) else None
    )


def _is_number(x: Any) -> bool:
    is_number = isinstance(x, int | float) and not isinstance(x, bool)
    return is_number and abs(x) < metrics.lines.MOST


def _fields(config: dict[str, Any], command: str) -> dict[str, str]:
    """What may differ between two runs beside the seed, by its name, as text."""
    fields = {"program": command.partition(" ")[0]}
    fields |= {x: config[x] for x in ("agent", "env", "network") if config.get(x)}
    train = config.get("train", {})
    return fields | _flat({name: x for name, x in train.items() if name not in KEPT})


def _flat(tree: Mapping[str, Any]) -> dict[str, str]:
    """Values by their path, as text; without recursion, for however deep a tree."""
    flat, waiting = {}, [*reversed(tree.items())]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{name}.{key}", x) for key, x in reversed(value.items())]
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _mean(values: Sequence[float]) -> Mean | None:
    if not values:
        return None
    mean = float(np.mean(values))
    if len(values) == 1 or not math.isfinite(mean):
        return Mean(mean)
    low, high = interval(np.array(values, float)[:, None])
    return Mean(mean, float(low[0]), float(high[0]))


def _notes(runs: Sequence[Compared]) -> Iterable[str]:
    seeds = {run.config.get("train", {}).get("seed") for run in runs}
    if len(seeds) < len(runs):
        yield "not all of its runs have different seeds"
    ends = [run.steps or 0.0 for run in runs]
    if min(ends) < 0.99 * max(ends):
        shortest = printable(str(runs[ends.index(min(ends))].folder))
        yield f"its mean curve ends after {human(min(ends))} steps, with {shortest}"
    if members := sum(lineage.is_adapted(run.config) for run in runs):
        yield (
            f"{members} of a population whose members took over one another's learners: "
            "not independent runs"
        )


def _letters() -> Iterable[str]:
    for size in itertools.count(1):
        for letters in itertools.product(string.ascii_uppercase, repeat=size):
            yield "".join(letters)


def _short(text: str, most: int = MOST_LETTERS) -> str:
    """A value as text of one line, of few letters."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def _human(number: float | None) -> str:
    return ABSENT if number is None else human(number)


def _time(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    if seconds is None or not 0 <= seconds < MOST_SECONDS:
        return ABSENT
    return str(datetime.timedelta(seconds=round(seconds)))
