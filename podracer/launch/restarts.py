"""Restarts: a command that failed resumes from the newest checkpoint of its run."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from podracer import command, files
from podracer.checkpoints import checksums
from podracer.errors import UserError
from podracer.runs import run_folder

CONFIG, CHECKPOINT = run_folder.CONFIG, f"{run_folder.CHECKPOINTS}/*"
# Its folder, and those of the runs of --seeds, --sweep or --population.
OF_RUN = "", "*/"
FINAL = (0, 2)  # exit codes without a restart: success, and bad input


class Commands(NamedTuple):
    """The commands for restarts of one run."""

    folder: Path  # of the run
    resume: tuple[str, ...]  # if the folder holds a complete checkpoint
    anew: tuple[str, ...]  # if it does not
    first: tuple[str, ...]  # if another command wrote there: it will be refused

    def in_config(self) -> list[str]:
        """What each of these leaves in the `config.json` of its run."""
        each = (shlex.join(x[x.index("train") :]) for x in self[1:])
        return [json.dumps(f" {text}")[1:] for text in each]


def commands(program: Sequence[str]) -> Commands:
    """Those of `anakin|sebulba train ... --run FOLDER`. Raises UserError for others."""
    names = dict.fromkeys(("run", "agent", "env", "network"), ())
    flags = command.read(program, names, switches=("trust",))
    folder = flags["run"]
    if not folder or "train" not in program:
        raise UserError(
            f"--restarts resumes a run, but {shlex.join(program)} names none: use "
            "anakin or sebulba train ... --run FOLDER"
        )
    if "--overwrite" in program:
        raise UserError(
            f"--restarts could resume the run that --overwrite is meant to remove: remove "
            f"{folder} yourself and leave --overwrite out"
        )
    train = program[: program.index("train") + 1]  # the folder has the rest
    resume = *train, "--resume", folder, *_code(flags)
    return Commands(Path(folder), resume, (*program, "--overwrite"), (*program,))


def _code(named: Mapping[str, Any]) -> list[str]:
    """The flags that name a user's own code: a run folder alone must not import it."""
    names = ["agent", "network"] + ["env"] * (":" in (named["env"] or ""))
    flags = [x for name in names if named[name] for x in (f"--{name}", named[name])]
    return [*flags, *["--trust"] * named["trust"]]


def following(program: Sequence[str]) -> tuple[Sequence[str], str]:
    """The command after `program` failed, and the reason. Raises UserError, see `commands`."""
    run = commands(program)
    if _holds_anothers(run):
        return run.first, f"{run.folder} holds the run of another command"
    for path in _found(run.folder, CHECKPOINT):
        if path.name.isdigit() and not checksums.find_problem(path):
            return run.resume, f"{run.folder} holds a checkpoint"
    return run.anew, f"{run.folder} holds no whole checkpoint yet"


def _holds_anothers(run: Commands) -> bool:
    """Whether the command failed before it could be refused in a folder that is taken."""
    known = [x.encode() for x in run.in_config()]  # the file may be damaged
    paths = _found(run.folder, CONFIG)
    return not all(any(x in _text(path) for x in known) for path in paths)


def _found(folder: Path, name: str) -> list[Path]:
    """What a run, or each of several in the folder, has by that name."""
    return [path for x in OF_RUN for path in folder.glob(f"{x}{name}")]


def _text(path: Path) -> bytes:
    """What is in a file; nothing where it cannot be read, of which the command will tell."""
    try:
        return files.read(path)
    except OSError:
        return b""


def in_shell(program: Sequence[str]) -> str:
    """`following` as shell code, for another machine. Raises UserError, see `commands`."""
    run = commands(program)
    return (
        f"if {holds_anothers(run)}; then {shlex.join(run.first)}; "
        f"elif {holds_checkpoint(run.folder)}; "
        f"then {shlex.join(run.resume)}; else {shlex.join(run.anew)}; fi"
    )


def holds_anothers(run: Commands) -> str:
    """The condition in shell code: a `config.json` without any of the commands."""
    known = " ".join(f"-e {shlex.quote(x)}" for x in run.in_config())
    return f'[ -n "$(grep -sLF {known} {_places(run.folder, CONFIG)})" ]'


def holds_checkpoint(folder: Path) -> str:
    """The condition in shell code. Unfinished checkpoints have other names."""
    found = f"ls -d {_places(folder, CHECKPOINT)} 2>/dev/null"
    return f'({found}; :) | grep -qx ".*/[0-9]*"'  # ls fails if either is not there


def _places(folder: Path, name: str) -> str:
    """What a shell finds as `_found` does."""
    return " ".join(f"{shlex.quote(str(folder))}/{x}{name}" for x in OF_RUN)


def run(
    start: Callable[[Sequence[str]], int],
    program: Sequence[str],
    restarts: int,
    following: Callable[[], tuple[Sequence[str], str]],
) -> int:
    """Starts a program, and restarts it if it fails; returns the last exit code.

    Args:
      start: runs a program and returns its exit code.
      program: the first one.
      restarts: the most restarts.
      following: returns the program of the next restart, and the reason for the choice.
    """
    code = start(program)
    for number in range(1, restarts + 1):
        if code in FINAL:
            break
        program, why = following()
        print(
            f"restart {number} of {restarts} after exit code {code}, {why}: "
            f"{shlex.join(program)}",
            flush=True,
        )
        code = start(program)
    return code
