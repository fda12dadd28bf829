"""`podracer launch local|slurm|tpu|xpk ... -- COMMAND`: one command on many hosts.

Each place is a module with the same interface: `Config`, its flags; `steps`, the shell
commands for those flags and the program, which `--dry-run` prints; and `run`, which
executes them.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence

from podracer import command
from podracer.errors import UserError
from podracer.launch import local, restarts, slurm, steps, tpu, xpk

PLACES = {"local": local, "slurm": slurm, "tpu": tpu, "xpk": xpk}


def start(argv: Sequence[str]) -> None:
    """Starts the command after `--` in the place that the first argument names."""
    argv, program = split(argv)
    places = {name: _starter(name, program) for name in PLACES}
    command.dispatch(places, argv, "podracer launch")


def _starter(name: str, program: list[str]) -> Callable[[Sequence[str]], None]:
    place = PLACES[name]

    def start(argv: Sequence[str]) -> None:
        with _usage():
            config = command.parse(place.Config(), argv, f"podracer launch {name}")
        if not program:
            raise UserError(f"which program? podracer launch {place.EXAMPLE}")
        if config.execution.restarts:
            restarts.commands(program)  # raises UserError before anything starts
        if config.execution.dry_run:
            print("\n".join(map(steps.line, place.steps(config, program))))
        else:
            sys.exit(place.run(config, program))

    start.__doc__ = place.Config.__doc__  # which `--help` lists
    return start


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    """Adds to the usage of `--help` what follows the flags."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield
    finally:
        print(said.getvalue().replace("\n\n", " -- COMMAND\n\n", 1), end="")


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before `--`, and the command after it."""
    argv = list(argv)
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]
