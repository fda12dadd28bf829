"""Checksums of a checkpoint's files, which detect what changed on the disk."""

import json
import zlib
from pathlib import Path
from typing import Any

from podracer import files

FILE = "checksums.json"
CHUNK = 2**22  # bytes read at once
# Orbax's file about the whole checkpoint, which it writes in a thread of its own, and again
# after the checksums: a checkpoint may be read, or its process killed, in the middle of that.
# Nothing here reads the file, so that it has no checksum.
METADATA = "_CHECKPOINT_METADATA"


def write(folder: Path) -> None:
    """Adds the file of checksums."""
    sums = {name: _sum(path) for name, path in _files(folder).items()}
    (folder / FILE).write_text(json.dumps(sums))


def find_problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, as `damaged (FILE has changed)`; None if whole."""
    try:
        expected = json.loads(files.read(folder / FILE))
        if not isinstance(expected, dict):
            return f"damaged ({FILE} holds no checksums)"
        expected.pop(METADATA, None)  # in those of earlier versions
        actual = _files(folder)
        for name in sorted(expected.keys() | actual.keys()):
            if name not in actual:
                return f"damaged ({name} is missing)"
            if not _is_as(actual[name], expected.get(name)):
                return f"damaged ({name} has changed)"
    except OSError as error:
        return f"damaged ({Path(error.filename or FILE).name}: {error.strerror})"
    except (ValueError, RecursionError):
        return f"damaged ({FILE} is no JSON)"
    return None


def _files(folder: Path) -> dict[str, Path]:
    """The files of a checkpoint, by their path in the folder."""
    paths = (path for path in folder.glob("*/**/*") if path.is_file())
    return {str(path.relative_to(folder)): path for path in paths}


def _is_as(path: Path, expected: Any) -> bool:
    """Whether a file has this [size, CRC-32]; one of another size is not read."""
    same = isinstance(expected, list) and expected[:1] == [path.stat().st_size]
    return same and _sum(path) == expected


def _sum(path: Path) -> list[int]:
    """[size, CRC-32] of a file."""
    size = crc = 0
    with open(path, "rb", opener=files.regular) as file:
        while chunk := file.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]
