"""The folder of a run: what it holds, how it is made and read back."""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podracer.errors import UserError

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CURVE = "curve.png"
CHECKPOINTS = "checkpoints"
CONTENTS = (CONFIG, METRICS, CURVE, CHECKPOINTS)  # all that a run may write


def create(
    path: str | Path | None, config: Any, overwrite: bool = False, name: str = "run"
) -> Path:
    """Makes the folder of a new run and writes its `config.json`.

    Without a path it is `runs/<name>-<time>`, never one that exists. `config` is
    anything of dictionaries and dataclasses. Raises UserError, with nothing left behind,
    where the folder cannot be written or holds a run and `overwrite` is not asked for.
    """
    description = {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {"python": platform.python_version()}
        | {package: _version(package) for package in ("podracer", "jax", "jaxlib")},
        "config": config,
    }
    text = json.dumps(description, indent=2, default=_plain) + "\n"
    with _clear_error(path or "runs"), contextlib.ExitStack() as undo:
        folder = _fresh(name) if path is None else Path(path)
        if path is None or not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            undo.callback(folder.rmdir)
        _refuse(folder, overwrite)
        with atomic(folder / CONFIG) as temporary:
            temporary.write_text(text)  # first, so that a full disk costs nothing
            for content in CONTENTS:
                _remove(folder / content)
        undo.pop_all()
    return folder


def load_config(folder: str | Path) -> dict[str, Any]:
    """What `create` wrote: "command", "versions" and "config". Raises UserError."""
    path = Path(folder) / CONFIG
    try:
        description = json.loads(path.read_text())
        if "podracer" in description["versions"]:
            return description
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; is this a run's folder?") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path}: not written by podracer, or damaged")


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` at the end, or is removed on an error."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _clear_error(path):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _clear_error(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path}: cannot write: {reason}; choose another") from error


def _fresh(name: str) -> Path:
    """A new folder, made here so that two runs of one second never share it."""
    stem = f"{name.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in itertools.chain([""], (f"-{i}" for i in itertools.count(2))):
        folder = Path("runs", stem + suffix)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError
