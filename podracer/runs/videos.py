"""The videos in a run's folder."""

from pathlib import Path
from typing import NamedTuple

from podracer import files
from podracer.errors import UserError
from podracer.runs.listing import printable

MOST = 8 * 2**20  # bytes of a video
# By a file's ending: its kind, and where in it which bytes are.
KINDS = {
    ".gif": ("image/gif", 0, b"GIF8"),
    ".mp4": ("video/mp4", 4, b"ftyp"),
    ".webm": ("video/webm", 0, b"\x1a\x45\xdf\xa3"),
}


class Video(NamedTuple):
    """A video that has been read."""

    path: Path
    kind: str  # image/gif, video/mp4, ...
    data: bytes


def find(folder: Path) -> list[Path]:
    """Those in a run's folder, without links: they may lead to a file that is private.

    Raises UserError where it cannot read the folder.
    """
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder}: cannot read: {error.strerror}") from error
    return [x for x in inside if x.suffix.lower() in KINDS and not x.is_symlink()]


def read(path: Path) -> Video:
    """Raises UserError where the file cannot be read, is too large, or no video."""
    name, (kind, start, begin) = printable(str(path)), KINDS[path.suffix.lower()]
    try:
        data = files.read(path, MOST)
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}") from error
    if not data.startswith(begin, start):
        raise UserError(f"{name}: not {kind}")
    return Video(path, kind, data)
