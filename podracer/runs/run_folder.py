"""The folder of a run: its files, and how it is created, locked and read."""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import os
import platform
import secrets
import shlex
import shutil
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from podracer import files, imports
from podracer.errors import UserError
from podracer.files import atomic, is_locked, locked, writing

CONFIG = "config.json"
TOGETHER = (
    "together.json"  # the same of several runs of one program, which lie beside it
)
METRICS = "metrics.jsonl"
CURVE = "curve.png"
CHECKPOINTS = "checkpoints"
STATE = "state.json"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
PROFILE = "profile"
LOCK, HOSTS = ".lock", ".hosts"
FOLDERS = CHECKPOINTS, TENSORBOARD, WANDB, PROFILE
STATES = ("running", "finished", "stopped", "failed")
CONTROL = {"Cc", "Zl", "Zp"}  # Unicode's categories of these and of ends of lines
PATTERN = "*?[\\"  # Orbax takes a path with one of these for a pattern
MOST_TEXT = 2**26  # bytes of config.json and state.json
NEVER = 2**40  # seconds since 1970, which no run has started at
SEEN_SECONDS = 30.0  # limit for a file of one host to be seen by the others
# Everything that a run may write.
CONTENTS = (CONFIG, METRICS, CURVE, STATE, *FOLDERS)
# What came of it. A folder with these alone holds no run.
EVALUATION, RULE, _ = RESULTS = (
    "evaluation.jsonl",
    "rule.safetensors",
    "evaluation.json",  # of earlier versions
)


def create(*arguments: Any, **options: Any) -> Path:
    """The folder of a new run that nobody holds; the arguments are those of `created`."""
    with created(*arguments, **options) as folder:
        return folder


@contextlib.contextmanager
def created(
    path: str | Path | None, config: Any, overwrite: bool = False, name: str = "run"
) -> Iterator[Path]:
    """Creates the folder of a new run, writes its `config.json` and holds it, see `held`.

    The folder's path is absolute. Without a path it is a new `runs/<name>-<time>`. `config`
    is made of dictionaries, dataclasses and plain values. Raises UserError, and changes
    nothing, if it cannot write, if the folder holds a run and `overwrite` is not set, or if
    another process writes the run.
    """
    text = _description(config)
    with contextlib.ExitStack() as lock:
        with writing(path or "runs"), contextlib.ExitStack() as undo:
            folder = fresh(name) if path is None else Path(path).absolute()
            if is_new := path is None or not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=path is None)
            check_free(folder, overwrite)  # first: no lock where no run is
            lock.enter_context(held(folder))
            if is_new:
                undo.callback(folder.rmdir)
                undo.callback((folder / LOCK).unlink)
            check_free(folder, overwrite)  # nobody begins a run there any more
            old = (*CONTENTS, *(RESULTS if (folder / CONFIG).exists() else ()))
            with atomic(folder / CONFIG) as temporary:
                # First, so that a full disk does not cost the old run.
                temporary.write_text(text)
                for content in old:
                    _remove(folder / content)
            undo.pop_all()
        yield folder


def fresh(name: str) -> Path:
    """A new folder; two runs started in the same second get different ones."""
    stem = f"{name.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = Path("runs", stem if number == 1 else f"{stem}-{number}").absolute()
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("unreachable")


def rewrite_config(folder: str | Path, config: Any, name: str = CONFIG) -> None:
    """Replaces the configuration, command and versions of a run that is resumed."""
    text = _description(config)
    with writing(folder), atomic(Path(folder) / name) as temporary:
        temporary.write_text(text)


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    packages = {"podracer": imports.DISTRIBUTION, "jax": "jax", "jaxlib": "jaxlib"}
    python = {"python": platform.python_version()}
    return python | {name: _version(package) for name, package in packages.items()}


def load_config(folder: str | Path, *needed: str, name: str = CONFIG) -> dict[str, Any]:
    """The contents of `config.json`: "command", "versions" and "config".

    Raises UserError if there is no run, it is damaged, or "config" lacks a field `needed`.
    """
    path = Path(folder) / name
    try:
        description = json.loads(files.read(path, MOST_TEXT))
    except OSError as error:
        runs = sorted(Path(folder).glob(f"*/{CONFIG}")) if os.path.isdir(folder) else []
        way_out = f"name one of its runs, {runs[0].parent}" if runs else "not a run?"
        if path.parent.parent.name == CHECKPOINTS:
            way_out = f"a checkpoint? name its run, {path.parent.parent.parent}"
        raise UserError(f"{path}: {error.strerror}; {way_out}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: damaged, or not JSON") from None
    if problem := _problem(description, needed):
        raise UserError(
            f"{path}: damaged, or not the configuration of a run ({problem})"
        )
    return description


# The types in `config.json`, and of the fields that "config" may have.
DESCRIPTION = {"command": str, "versions": dict, "config": dict}
OF_CONFIG = {"agent": str, "env": str, "train": dict}
OF_CONFIG |= {"specs": (dict, type(None)), "network": (str, type(None))}
OF_CONFIG |= {"population": (int, type(None))}


def _problem(description: Any, needed: Sequence[str]) -> str | None:
    if not isinstance(description, dict):
        return "no object"
    if missing := DESCRIPTION.keys() - description.keys():
        return f"without {min(missing)!r}"
    for fields, types in (
        (description, DESCRIPTION),
        (description["config"], OF_CONFIG),
    ):
        for name in types.keys() & fields.keys():
            if not isinstance(fields[name], types[name]):
                return f"{name} is {_short(fields[name])}"
    config = description["config"]
    if missing := {*needed} - config.keys():
        return f"without {min(missing)!r}"
    seed = config.get("train", {}).get("seed", 0)
    return None if type(seed) is int else f"seed is {_short(seed)}"


def _short(value: Any) -> str:
    return f"{json.dumps(value):.40}"


@contextlib.contextmanager
def held(folder: str | Path) -> Iterator[None]:
    """Locks a run against other processes that would write it.

    The lock ends with the process, however that ends. Raises UserError if another process
    has it, or if a folder in the run is a link: a run writes nowhere else.
    """
    for name in FOLDERS:
        files.check_no_link(Path(folder) / name)
    with contextlib.ExitStack() as stack, writing(folder):
        try:
            stack.enter_context(locked(Path(folder) / LOCK))
        except BlockingIOError:
            raise UserError(
                f"{folder}: another process is writing this run; wait for it or stop it"
            ) from None
        stack = stack.pop_all()
    with stack:
        yield


def check_shared(folder: Path) -> None:
    """Raises UserError on a host that does not see the folder that host 0 writes."""
    from podracer.parallel import (
        hosts,
    )  # imports JAX, which a list of runs does not need

    if hosts.number_of() == 1:
        return
    path = folder / HOSTS

    def mark() -> str:
        text = secrets.token_hex(8)
        with atomic(path) as temporary:
            temporary.write_text(text)
        return text

    mark, deadline = hosts.lead(mark), time.monotonic() + SEEN_SECONDS
    while not path.is_file() or files.read(path) != mark.encode():
        if time.monotonic() > deadline:
            raise UserError(
                f"{folder}: host {hosts.this()} does not see what host 0 writes there: "
                "--run must name a folder that all hosts share, as a mounted bucket or NFS"
            )
        time.sleep(0.1)


def is_held(folder: str | Path) -> bool:
    """Whether a process is writing the run."""
    return is_locked(Path(folder) / LOCK)


def load_state(folder: Path) -> dict[str, Any]:
    """What `recording.track_state` wrote, but "stopped" if the process died; empty if damaged."""
    try:
        state = json.loads(files.read(folder / STATE, MOST_TEXT))
        started = state.get("started", 0)
        known = state["state"] in STATES and type(started) in (int, float)
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return {}
    if not known or not 0 <= started < NEVER:
        return {}
    died = state["state"] == "running" and not is_held(folder)
    return state | {"state": "stopped"} if died else state


def check_free(folder: Path, overwrite: bool) -> None:
    """Raises UserError if the folder holds a run, unless it may be overwritten."""
    if not any((folder / content).exists() for content in CONTENTS):
        return
    if not overwrite:
        raise UserError(
            f"{folder}: holds a run already; continue it with --resume, choose another "
            "folder, or --overwrite (in a script: resume=True, overwrite=True)"
        )
    load_config(folder)  # never remove files that no run wrote


def check_startable(folder: Path | None, overwrite: bool) -> None:
    """Raises UserError where a new run could not write its folder; leaves nothing there.

    Comes before compilation, which takes long; `created` looks again.
    """
    place = Path("runs") if folder is None else folder
    with writing(place):
        whole = str(place.absolute())
    if any(unicodedata.category(x) in CONTROL for x in whole):
        raise UserError(
            f"{whole!a}: has a control character in its path, which breaks every line "
            "that names it; choose another folder"
        )
    try:
        whole.encode()
        with writing(place):  # its name may be too long
            exists = folder is not None and folder.is_dir()
    except UnicodeEncodeError:  # Orbax could not write there
        raise UserError(
            f"{str(place)!a}: its path is not valid UTF-8; choose another folder"
        ) from None
    if magic := [x for x in whole if x in PATTERN]:
        raise UserError(
            f"{whole}: has {magic[0]!r} in its path, where checkpoints could not be read "
            "again; choose another folder"
        )
    if exists:
        if is_held(folder):
            raise UserError(
                f"{folder}: another process is writing this run; wait for it, stop it, or "
                "choose another folder"
            )
        check_free(folder, overwrite)
    while not place.exists() and not place.is_symlink():
        place = place.parent
    with writing(folder or "runs"), tempfile.TemporaryDirectory(dir=place):
        pass


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _description(config: Any) -> str:
    """The text of `config.json`."""
    description = {
        "command": shlex.join([_program(), *sys.argv[1:]]),
        "versions": versions(),
        "config": config,
    }
    return json.dumps(description, indent=2, default=plain) + "\n"


def _program() -> str:
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def plain(value: Any) -> Any:
    """For JSON: a dataclass as a dictionary, anything else as text."""
    is_config = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_config else str(value)
