"""The words and units of what a run reports, and the file that keeps it."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from podracer.errors import UserError

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
    "loss/policy": ("", "policy gradient loss"),
    "loss/value": ("", "value loss, times its cost"),
    "loss/entropy": ("", "entropy loss, times its cost"),
    "gradient_norm": ("", "global norm of the averaged gradient, before any clip"),
    "learning_rate": ("", "at the last update of this row"),
}


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
        try:
            self._file = open(self._path, "a+b", buffering=0)
            self._drop_unfinished_line()
        except OSError as error:
            raise self._clear(error) from error
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def write(self, metrics: Mapping[str, float]) -> None:
        row = {name: _json_number(number) for name, number in metrics.items()}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        try:
            while line:  # an unbuffered write may take a part only
                line = line[self._file.write(line) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(end)
            raise self._clear(error) from error

    def _drop_unfinished_line(self) -> None:
        end = self._file.seek(0, os.SEEK_END)
        start = self._file.seek(max(end - 2**16, 0))  # no line is as long as this
        tail = self._file.read(end - start)
        self._file.truncate(start + tail.rfind(b"\n") + 1)

    def _clear(self, error: OSError) -> UserError:
        return UserError(f"{self._path}: cannot write: {error.strerror}")


def read(path: str | Path) -> Iterator[dict[str, float | None]]:
    """The rows of a `metrics.jsonl`, one at a time, without a last line cut short."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def _json_number(number: float) -> float | None:
    """JSON has neither NaN nor infinity; steps stay integers, which may pass 2^53."""
    if isinstance(number, int):
        return number
    return float(number) if math.isfinite(number) else None
