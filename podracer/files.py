"""Reading and atomic writing of files in folders that others may have filled, and locks.

Nothing is written through a link that lies there, and only regular files of a sane size are
read: a pipe or a device would never end. One line says where the system refuses.
"""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from podracer.errors import UserError

MOST = 2**30  # bytes of a file that is read
LINK = "a link, to somewhere else; remove it"


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path, renamed to `path` at the end, or removed after an error.

    It lies in a new folder beside `path`, which nobody else may enter. Raises UserError if
    it cannot write.
    """
    if not path.name:  # "." or "/"
        raise UserError(f"{path}: cannot write: a folder; name a file in it")
    with (
        writing(path),
        tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as folder,
    ):
        temporary = Path(folder, path.name)
        yield temporary
        os.replace(temporary, path)


def regular(path: str, flags: int) -> int:
    """The `opener` of `open` for a regular file; to be written, it must not be a link.

    Raises OSError otherwise, at once, also where the file is a pipe.
    """
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= os.O_NOFOLLOW
    try:
        number = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and os.path.islink(path):
            raise OSError(error.errno, LINK, path) from None
        raise
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        is_folder = stat.S_ISDIR(mode)
        raise OSError(
            errno.EISDIR if is_folder else errno.EINVAL,
            os.strerror(errno.EISDIR) if is_folder else "not a regular file",
            path,
        )
    return number


@contextlib.contextmanager
def opened(path: str | Path, most: int = MOST) -> Iterator[IO[bytes]]:
    """A regular file to read. Raises OSError, also where it has more bytes than `most`."""
    with open(path, "rb", opener=regular) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
        yield file


def read(path: str | Path, most: int = MOST) -> bytes:
    """The bytes of a file; see `opened`."""
    with opened(path, most) as file:
        return file.read(most)


def check_no_link(path: Path) -> None:
    """Raises UserError where writing to `path` would write elsewhere."""
    if path.is_symlink():
        raise UserError(f"{path}: cannot write: {LINK}")


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
    with open(path, "a", opener=regular) as file:
        _lock(file, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of a file."""
    try:
        with open(path, opener=regular) as file:
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
