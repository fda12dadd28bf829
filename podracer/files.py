"""Writing files atomically, and one line where the system refuses."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

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
