"""The words and units of what a run reports, and the file that keeps it."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from podracer.run_folder import atomic, writing

# The same words in both architectures. A row is one call of a compiled program (Anakin)
# or a report of the learner (Sebulba); a number is null where there was nothing to report.
VOCABULARY = {
    # name: (unit, meaning)
    "steps": ("environment steps", "since the start of the run, over all cores"),
    "updates": ("updates", "of the learner, since the start of the run"),
    "seconds": ("s", "wall time of this row, without compilation"),
    "steps_per_second": ("environment steps / s", "over this row"),
    "compile_seconds": ("s", "spent on compilation before the first row"),
    "episodes": ("episodes", "that finished in this row"),
    "episode_return": ("reward", "mean undiscounted return of those episodes"),
    "episode_length": ("environment steps", "mean length of those episodes"),
    "evaluation_episodes": ("episodes", "played apart, greedily; 0 in most rows"),
    "evaluation_return": ("reward", "mean undiscounted return of those episodes"),
    "evaluation_low": ("reward", "end of the 95 % interval of that mean"),
    "evaluation_high": ("reward", "the other end"),
    # Of the agent: means over the updates of the row and over the cores.
    "loss/policy": ("", "policy gradient loss, a step"),
    "loss/value": ("", "half the squared error of the value, a step"),
    "loss/entropy": ("nat", "negative entropy of the policy, a step"),
    "loss/total": ("", "policy loss and the others times their costs, a step"),
    "rho": ("", "probability of an action, target over behaviour policy"),
    "kl": ("nat", "KL divergence of the target from the behaviour policy"),
    "kl_penalty": ("", "weight of that divergence in the loss"),
    "clipped": ("share", "of the actions whose rho is beyond the clip"),
    "epochs": ("", "passes over the trajectory before the update ended"),
    "trained": ("share", "of the trajectories that completed an update's episodes"),
    "episodes_waiting": ("episodes", "finished and not learned from, on a core"),
    "episodes_dropped": ("episodes", "that found no space, a trajectory and core"),
    "max_episode_length": ("environment steps", "that an agent's memory holds"),
    "observation_scale": ("", "what observations are divided by, mean over all parts"),
    "reward_scale": ("reward", "what rewards are divided by"),
    "observation": ("", "mean of all numbers observed; a check"),
    "reward": ("reward", "mean, a step"),
    "gradient_norm": ("", "global norm of the averaged gradient, before any clip"),
    "learning_rate": ("", "step size of the optimiser"),
    # Of Sebulba's transport.
    "frames_per_second": ("emulator frames / s", "steps times the action repeat"),
    "learner_steps_per_second": ("updates / s", "over this row"),
    "learner_waiting": ("share of the time", "that the learner waited for data"),
    "actors_waiting": ("share of the time", "that actors waited for space"),
    "lag_mean": ("updates", "between acting and learning, mean over steps"),
    "lag_median": ("updates", "the same, median"),
    "lag_max": ("updates", "the same, greatest"),
    "dropped": ("trajectories", "too old to learn from, since the start of the run"),
    "lost_episodes": (
        "episodes",
        "discarded, since the start of the run, because what ran them died",
    ),
    "games": ("games", "that finished in this row, where episodes are lives"),
    "game_return": ("reward", "mean undiscounted return of those games"),
}


# How rows are merged into one; all others are means over the rows.
NEWEST = ("steps", "updates", "compile_seconds", "dropped", "max_episode_length")
SUM = ("seconds", "episodes", "games", "evaluation_episodes")
WEIGHT = {
    "episode_return": "episodes",
    "episode_length": "episodes",
    "game_return": "games",
    "evaluation_return": "evaluation_episodes",
    "evaluation_low": "evaluation_episodes",
    "evaluation_high": "evaluation_episodes",
    "steps_per_second": "seconds",
    "frames_per_second": "seconds",
    "learner_steps_per_second": "seconds",
    "learner_waiting": "seconds",
    "actors_waiting": "seconds",
}
TAIL = 2**16  # bytes at a file's end that hold its last rows


def human(number: float) -> str:
    """Three digits and a suffix: 0.985, 1.23k, 310k, 4M, 2.1B; a dash for NaN."""
    if math.isnan(number):
        return "-"
    for suffix in ("", "k", "M", "B"):
        if abs(number) < 999.5:
            return f"{number:.3g}{suffix}"
        number /= 1000
    return f"{number:.3g}T"


class JsonLines:
    """Appends metrics to a file, one JSON object a line, each on disk at once.

    The file holds whole lines only, whatever happens: a line that was cut short is
    removed, here or when the file is opened again. Raises UserError if it cannot write.
    """

    def __init__(self, path: str | Path):
        self._path = Path(path)

    def __enter__(self) -> Self:
        with writing(self._path):
            self._file = open(self._path, "a+b", buffering=0)
            self._drop_unfinished_line()
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def write(self, metrics: Mapping[str, float]) -> None:
        row = {name: _json_number(number) for name, number in metrics.items()}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        with writing(self._path):
            try:
                while line:  # an unbuffered write may take a part only
                    line = line[self._file.write(line) :]
            except OSError:
                with suppress(OSError):
                    self._file.truncate(end)
                raise

    def _drop_unfinished_line(self) -> None:
        end = self._file.seek(0, os.SEEK_END)
        start = self._file.seek(max(end - TAIL, 0))  # no line is as long as this
        whole, newline, rest = self._file.read(end - start).rpartition(b"\n")
        if rest:
            self._file.truncate(start + len(whole + newline))


def read(path: str | Path) -> Iterator[dict[str, float | None]]:
    """The rows of a `metrics.jsonl`, one at a time, without a last line cut short."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def last(path: str | Path) -> dict[str, float | None]:
    """The newest number of each metric that is not null; empty where there is no row."""
    newest: dict[str, float | None] = {}
    with suppress(FileNotFoundError), open(path, "rb") as file:
        start = file.seek(max(file.seek(0, os.SEEK_END) - TAIL, 0))
        lines = file.read().split(b"\n")[start > 0 : -1]  # without parts of a line
        for line in lines:
            row = json.loads(line)
            newest |= {name: x for name, x in row.items() if x is not None}
    return newest


def merge(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Neighbouring rows as one: what they would have been, reported together.

    Counts and means are exact; of medians the mean is taken.
    """
    if len(rows) == 1:
        return dict(rows[0])
    return {name: _merged(name, rows) for name in rows[-1]}


def _merged(name: str, rows: Sequence[Mapping[str, float]]) -> float:
    numbers = [row[name] for row in rows]
    if name in NEWEST:
        return numbers[-1]
    if name in SUM:
        return sum(numbers)
    if name == "lag_max":
        return max(numbers)
    weights = [row[WEIGHT[name]] if name in WEIGHT else 1 for row in rows]
    pairs = [(x, weight) for x, weight in zip(numbers, weights) if weight]
    total = sum(weight for _, weight in pairs)
    return sum(x * weight for x, weight in pairs) / total if total else math.nan


def cut(path: str | Path, updates: int) -> None:
    """Removes the rows after so many updates. Raises UserError if it cannot write."""
    path = Path(path)
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8") as lines:
        for row in read(path) if path.exists() else ():
            if row["updates"] <= updates:
                lines.write(json.dumps(row) + "\n")


def _json_number(number: float) -> float | None:
    """JSON has neither NaN nor infinity; steps stay integers, which may pass 2^53."""
    if isinstance(number, int):
        return number
    return float(number) if math.isfinite(number) else None
