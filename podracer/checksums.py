"""Checksums of a checkpoint's files: what has changed on the disk is noticed."""

import json
import zlib
from pathlib import Path

FILE = "checksums.json"
CHUNK = 2**22  # bytes read at once


def write(folder: Path) -> None:
    """Adds the file of checksums."""
    (folder / FILE).write_text(json.dumps(_of(folder)))


def problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        wanted = json.loads((folder / FILE).read_text())
        found = _of(folder)
    except (OSError, ValueError) as error:
        return f"damaged ({error})"
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            return f"damaged ({name} is missing)"
        if found[name] != wanted.get(name):
            return f"damaged ({name} has changed)"
    return None


def _of(folder: Path) -> dict[str, list[int]]:
    """[size, CRC-32] of each file of a checkpoint but those of the whole folder."""
    files = (path for path in sorted(folder.glob("*/**/*")) if path.is_file())
    return {str(path.relative_to(folder)): _of_file(path) for path in files}


def _of_file(path: Path) -> list[int]:
    size = crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]
