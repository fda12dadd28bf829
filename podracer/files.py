"""Writing files atomically, locks, and one line where the system refuses."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from podracer.errors import UserError


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path, renamed to `path` at the end, or removed after an error.

    Raises UserError if it cannot write.
    """
    if not path.name:  # "." or "/"
        raise UserError(f"{path}: cannot write: a folder; name a file in it")
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turns an OSError (full disk, no permission) into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror or error}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a file, which it creates, until the end or that of the process.

    Raises BlockingIOError if another process has the lock.
    """
    with open(path, "a") as file:
        _lock(file, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of a file."""
    try:
        with open(path) as file:
            _lock(file, fcntl.LOCK_SH)
    except BlockingIOError:
        return True
    except OSError:  # never locked
        pass
    return False


def _lock(file: IO, operation: int) -> None:
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        pass
