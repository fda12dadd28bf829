"""Which checkpoints there are in a folder, and which of them are whole."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from podracer import files
from podracer.checkpoints import checksums
from podracer.errors import UserError

ATTEMPTS = 5  # to find and read a checkpoint of a run that removes them meanwhile

Damaged = list[tuple[int, str]]  # updates, and what is wrong


def find_checkpoints(folder: Path) -> list[int]:
    """The checkpoints in a folder by their number of updates, newest first."""
    names = [path.name for path in folder.glob("[0-9]*") if path.is_dir()]
    numbers = (int(name) for name in names if name.isascii() and name.isdigit())
    return sorted((n for n in numbers if f"{n}" in names), reverse=True)


def find_problems(folder: Path) -> Iterator[tuple[int, str | None]]:
    """Each checkpoint, newest first, and what is wrong with it; None if it is whole."""
    for updates in find_checkpoints(folder):
        yield updates, checksums.find_problem(folder / str(updates))


def find_whole(folder: Path) -> Iterator[int]:
    """The updates of the whole checkpoints, newest first."""
    return (updates for updates, problem in find_problems(folder) if problem is None)


def find_newest(folder: Path) -> tuple[int | None, Damaged]:
    """The newest whole checkpoint, if any, and the damaged ones that are newer."""
    whole, damaged = None, []
    for updates, problem in find_problems(folder):
        if problem is None:
            whole = updates
            break
        damaged.append((updates, problem))
    if all((folder / str(updates)).exists() for updates, _ in damaged):
        return whole, damaged
    return find_newest(folder)  # its run removed one meanwhile, and has newer ones


def choose_to_resume(folder: Path) -> tuple[int | None, Damaged]:
    """`find_newest`, with the damaged ones named and renamed.

    Orbax saves nothing that is older than a checkpoint it finds.
    """
    whole, damaged = find_newest(folder)
    for updates, problem in damaged if whole is not None else ():
        path = folder / str(updates)
        aside = path.with_name(f"{path.name}.damaged")
        with files.writing(path):
            if aside.exists():
                shutil.rmtree(aside)
            path.rename(aside)
        print(
            f"{path}: {problem}; renamed to {aside.name}, the run resumes from "
            f"checkpoint {whole}"
        )
    return whole, damaged


def choose_to_read(folder: Path, updates: int | None) -> int:
    """The newest whole checkpoint, or that of `updates`. Raises UserError."""
    if updates is not None:
        return _named(folder, updates)
    whole, damaged = find_newest(folder)
    if whole is None:
        raise no_whole_error(folder, damaged, "train the agent first")
    for number, problem in damaged:
        print(f"{folder / str(number)}: {problem}; checkpoint {whole} is used")
    return whole


def removal_error(path: Path) -> UserError:
    """The error where a checkpoint was there and is no longer."""
    return UserError(
        f"{path}: was removed by the run while it was read; try again, or raise "
        "--checkpoint.keep"
    )


def no_whole_error(folder: Path, damaged: Damaged, way_out: str) -> UserError:
    """The error where no checkpoint can be read."""
    each = "; ".join(f"{updates} is {problem}" for updates, problem in damaged)
    return UserError(
        f"{folder}: no whole checkpoint{f' ({each})' if each else ''}; {way_out}"
    )


def _named(folder: Path, updates: int) -> int:
    path, known = folder / str(updates), sorted(find_checkpoints(folder))
    if updates not in known:
        raise UserError(
            f"{path}: no such checkpoint; there are "
            f"{', '.join(map(str, known)) or 'none'}"
        )
    if problem := checksums.find_problem(path):
        if not path.exists():
            raise removal_error(path)
        raise UserError(f"{path}: {problem}; choose another")
    return updates
