"""Checksums of a checkpoint's files, which detect what changed on the disk."""

import json
import zlib
from pathlib import Path
from typing import Any

FILE = "checksums.json"
CHUNK = 2**22  # bytes read at once
# Orbax's file about the whole checkpoint, which it writes in a thread of its own, and again
# after the checksums: a checkpoint may be read, or its process killed, in the middle of that.
# Nothing here reads the file, so that it has no checksum.
METADATA = "_CHECKPOINT_METADATA"


def write(folder: Path) -> None:
    """Adds the file of checksums."""
    (folder / FILE).write_text(json.dumps(_sums(folder)))


def find_problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, as `damaged (FILE has changed)`; None if whole."""
    try:
        expected = json.loads((folder / FILE).read_text())
        actual = _sums(folder)
    except OSError as error:
        return f"damaged ({Path(error.filename or FILE).name}: {error.strerror})"
    except (ValueError, RecursionError):
        return f"damaged ({FILE} is no JSON)"
    if not isinstance(expected, dict):
        return f"damaged ({FILE} holds no checksums)"
    expected.pop(METADATA, None)  # in those of earlier versions
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            return f"damaged ({name} is missing)"
        if actual[name] != expected.get(name):
            return f"damaged ({name} has changed)"
    return None


def _sums(folder: Path) -> dict[str, Any]:
    """[size, CRC-32] of each file of a checkpoint, by its path in the folder."""
    files = (path for path in sorted(folder.glob("*/**/*")) if path.is_file())
    return {str(path.relative_to(folder)): _sum(path) for path in files}


def _sum(path: Path) -> list[int]:
    size = crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]
