"""The file `metrics.jsonl`: one row of metrics per line."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from podracer.files import atomic, opened, regular, writing

TAIL = 2**16  # bytes at the end of a file, which contain its last rows
MOST = 2.0**128  # above all float32; larger numbers are damage, and overflow in plots

Row = dict[str, float | None]


class JsonLines:
    """Appends metrics to a file, one JSON object per line, written immediately.

    A line that was cut short is removed, at once or when the file is opened again.
    Raises UserError if it cannot write.
    """

    def __init__(self, path: str | Path):
        self._path = Path(path)

    def __enter__(self) -> Self:
        with writing(self._path):
            self._file = open(self._path, "a+b", buffering=0, opener=regular)
            self._drop_unfinished_line()
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def write(self, metrics: Mapping[str, float]) -> None:
        row = {name: json_number(number) for name, number in metrics.items()}
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
        whole = end
        while whole:  # backwards: a power cut may leave any number of NULs
            start = self._file.seek(max(whole - TAIL, 0))
            part, newline, _ = self._file.read(whole - start).rpartition(b"\n")
            if newline:
                whole = start + len(part + newline)
                break
            whole = start
        if whole < end:
            self._file.truncate(whole)


def read(
    path: str | Path, say: Callable[[str], None] = lambda line: None
) -> Iterator[Row]:
    """The rows of a `metrics.jsonl`, one at a time, without a last line cut short.

    Lines that are not a row are skipped; `say` then prints one line about them.
    """
    lost = _Lost(path, say, "left out")
    for line in _whole_lines(path):
        row = _row(line)
        lost.add(row)
        if row is not None:
            yield row
    lost.report()


def last(path: str | Path) -> Row:
    """The last value of each metric that is not null; empty if there is no row."""
    newest: Row = {}
    with suppress(FileNotFoundError), opened(path) as file:
        start = file.seek(max(file.seek(0, os.SEEK_END) - TAIL, 0))
        lines = file.read().split(b"\n")[start > 0 : -1]  # without parts of a line
        for row in filter(None, map(_row, lines)):
            newest |= {name: x for name, x in row.items() if x is not None}
    return newest


def cut(path: str | Path, updates: int, say: Callable[[str], None] = print) -> None:
    """Removes the rows after `updates` updates, and lines that cannot be read.

    `say` prints one line about the latter. Raises UserError if it cannot write.
    """
    path = Path(path)
    lost = _Lost(path, say, "dropped")
    with atomic(path) as temporary, open(temporary, "wb") as file:
        for line in _whole_lines(path) if path.exists() else ():
            row = _row(line, "updates")
            lost.add(row)
            if row is not None and row["updates"] <= updates:
                file.write(line)
    lost.report()


class _Lost:
    """Counts lines that are no row, and reports them in one line."""

    def __init__(self, path: str | Path, say: Callable[[str], None], what: str):
        self._path, self._say, self._what = path, say, what
        self._count, self._steps, self._after = 0, 0.0, 0.0

    def add(self, row: Row | None) -> None:
        if row is not None:
            self._steps = row["steps"]
            return
        if not self._count:
            self._after = self._steps
        self._count += 1

    def report(self) -> None:
        if self._count:
            lines = "1 line" if self._count == 1 else f"{self._count} lines"
            self._say(
                f"{self._path}: {self._what} {lines} that cannot be read: reports after "
                f"step {self._after:,.0f}"
            )


def _whole_lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a file, without a last one that was cut short."""
    with opened(path) as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line


def _row(line: bytes, *names: str) -> Row | None:
    """The row in a line, numbers by name, if it is one with `steps` and those names."""
    try:
        row = json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not all(map(_is_number, row.values())):
        return None
    return row if all(row.get(name) is not None for name in ("steps", *names)) else None


def _is_number(x: Any) -> bool:
    """Whether JsonLines writes such a value; to Python a bool is an int, too."""
    if isinstance(x, int):
        return not isinstance(x, bool) and abs(x) < 2**63
    return x is None or (isinstance(x, float) and abs(x) < MOST)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def json_number(number: float | None) -> float | None:
    """Null for NaN and infinity, which JSON lacks; integers stay exact beyond 2^53."""
    if number is None or isinstance(number, int):
        return number
    return float(number) if math.isfinite(number) else None
