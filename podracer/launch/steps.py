"""Steps: the shell commands of a launcher, in order, and clean-up that always runs."""

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from podracer import command
from podracer.errors import UserError, check_range
from podracer.launch import restarts

POLL_SECONDS = 15.0  # between two polls of a step that waits
LOOK_SECONDS = 60.0  # limit of one poll
END_SECONDS = 10.0  # from SIGTERM to SIGKILL
TIMED_OUT = 124  # exit code of a step that took too long, as of timeout(1)


@dataclasses.dataclass(frozen=True)
class Execution:
    """Flags that all launchers have."""

    restarts: int = 0
    """how many times to restart the command if it fails; it resumes from its newest
    checkpoint, so it needs --run FOLDER"""
    dry_run: bool = False
    """print the shell commands and execute nothing"""

    def __post_init__(self):
        check_range("restarts", self.restarts, 0)


class Step(NamedTuple):
    """One shell command."""

    name: str
    argv: tuple[str, ...]
    input: str | None = None  # its standard input
    seconds: float | None = 600.0  # its time limit; None: no limit
    after: str = ""  # clean-up: name of the step after which it always runs
    until: str = ""  # repeat it until it prints this
    unless: tuple[str, ...] = ()  # outputs that mean failure
    again: tuple[str, ...] = ()  # the command for restarts
    restarts: int = 0  # at most


def line(step: Step) -> str:
    """The step as shell code."""
    text = shlex.join(step.argv)
    if step.input is not None:
        text += f" <<'END'\n{step.input}END"
    if step.until:
        minutes = f"{step.seconds / 60:g} minutes at most"
        text += f"  # until it prints {step.until}, {minutes}"
    if step.restarts:
        text += f"\n# where that fails, {step.restarts} times at most:"
        text += f"\n{shlex.join(step.again)}"
    return text


def do(steps: Sequence[Step], install: str) -> int:
    """Executes the steps in order; returns the exit code of the first that failed, or 0.

    Clean-up, the steps with `after`, runs at the end in reverse order, even if other steps
    fail or are interrupted, once the step that it follows has succeeded or timed out.
    Raises UserError if a program is missing; `install` says where to get it.
    """
    for program in {step.argv[0] for step in steps}:
        if not shutil.which(program):
            raise UserError(
                f"{program} is not installed here ({install}); --dry-run shows the "
                "commands"
            )
    codes = []

    def do_last(step: Step) -> None:
        with _whole():
            codes.append(_do(step))

    awaited = {step.after for step in steps}
    with contextlib.ExitStack() as last:
        for step in steps:
            if step.after or any(codes):
                continue
            with _whole() if step.name in awaited else contextlib.nullcontext():
                codes.append(_do(step))
                for other in steps:
                    if other.after == step.name and codes[-1] in (0, TIMED_OUT):
                        last.callback(do_last, other)
    return next(filter(None, codes), 0)


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """Defers a Ctrl-C, SIGTERM or SIGHUP to the end of the block; a second Ctrl-C interrupts it."""
    with command.stopping() as is_asked_to_stop:
        yield
    if is_asked_to_stop():
        raise SystemExit(128 + signal.SIGTERM)


def _do(step: Step) -> int:
    """Executes a step with its polls and restarts; returns its exit code."""

    def start(argv: Sequence[str]) -> int:
        _say(f"{step.name}: {shlex.join(argv)}")
        if step.until:
            return _wait(step)
        return _call(argv, step.seconds, step.input)[0]

    def following() -> tuple[Sequence[str], str]:
        return step.again, "from the newest checkpoint, if there is one"

    code = restarts.run(start, step.argv, step.restarts, following)
    if code:
        took_long = ", it took too long" if code == TIMED_OUT else ""
        _say(f"{step.name}: failed with exit code {code}{took_long}")
    return code


def _wait(step: Step) -> int:
    """Polls a step and prints its output whenever that changes."""
    end, before = time.monotonic() + step.seconds, None
    while time.monotonic() < end:
        output = _call(step.argv, LOOK_SECONDS, stdout=subprocess.PIPE)[1].strip()
        if output != before:
            _say(f"{step.name}: {output}")
        if output == step.until:
            return 0
        if output in step.unless:
            return 1
        before = output
        time.sleep(POLL_SECONDS)
    return TIMED_OUT


def _call(
    argv: Sequence[str],
    seconds: float | None,
    input: str | None = None,
    stdout: int | None = None,
) -> tuple[int, str]:
    """The exit code of a program, and its output if `stdout` is a pipe.

    It has no terminal: Ctrl-C does not reach it, and it cannot ask questions.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=stdout,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            output = process.communicate(input, timeout=seconds)[0] or ""
        except subprocess.TimeoutExpired:
            return TIMED_OUT, ""
        finally:
            if process.poll() is None:
                end([process])
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its children
    code = process.returncode
    return (code if code >= 0 else 128 - code), output


def end(processes: Sequence[subprocess.Popen]) -> None:
    """Ends the processes that still run: SIGTERM, and SIGKILL after END_SECONDS."""
    running = [p for p in processes if p.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + END_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _say(text: str) -> None:
    """Prints the text; a closed output must not stop the clean-up."""
    with contextlib.suppress(OSError):
        print(text, flush=True)
