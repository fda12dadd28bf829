"""Checksums of a checkpoint's files, which detect what changed on the disk."""

import json
import zlib
from pathlib import Path
from typing import Any

FILE = "checksums.json"
CHUNK = 2**22  # bytes read at once
# Orbax's file about the whole checkpoint, which it writes in a thread of its own: at the time
# of the checksums it may be half-written, and the time of the commit is added afterwards. So
# its fields are recorded one by one, if they can be read by then; nothing here reads the file.
METADATA, COMMIT_TIME = "_CHECKPOINT_METADATA", "commit_timestamp_nsecs"


def write(folder: Path) -> None:
    """Adds the file of checksums."""
    (folder / FILE).write_text(json.dumps(_of(folder)))


def problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, as `damaged (FILE has changed)`; None if whole."""
    try:
        wanted = json.loads((folder / FILE).read_text())
        found = _of(folder)
    except OSError as error:
        return f"damaged ({Path(error.filename or FILE).name}: {error.strerror})"
    except (ValueError, RecursionError):
        return f"damaged ({FILE} is no JSON)"
    if not isinstance(wanted, dict):
        return f"damaged ({FILE} holds no checksums)"
    fields, now = wanted.pop(METADATA, {}), found.pop(METADATA, {})
    if not isinstance(fields, dict) or any(now.get(x) != fields[x] for x in fields):
        return f"damaged ({METADATA} has changed)"
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            return f"damaged ({name} is missing)"
        if found[name] != wanted.get(name):
            return f"damaged ({name} has changed)"
    return None


def _of(folder: Path) -> dict[str, Any]:
    """[size, CRC-32] of each file of a checkpoint, by its path in the folder; of the
    metadata the CRC-32 of each field."""
    files = (path for path in sorted(folder.glob("*/**/*")) if path.is_file())
    found = {str(path.relative_to(folder)): _of_file(path) for path in files}
    return found | {METADATA: _fields(folder / METADATA)}


def _of_file(path: Path) -> list[int]:
    size = crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


def _fields(path: Path) -> dict[str, int]:
    """The CRC-32 of each field of the metadata; empty where they cannot be read."""
    try:
        fields = json.loads(path.read_bytes())
        fields.pop(COMMIT_TIME, None)
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return {}
    return {
        name: zlib.crc32(json.dumps(x, sort_keys=True).encode())
        for name, x in fields.items()
    }
