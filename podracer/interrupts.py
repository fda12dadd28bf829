"""Ctrl-C while a command still imports what it needs, for a second or two: one line."""

import itertools
import os
import signal
import sys
from typing import Any, NoReturn

COMMANDS = ("anakin", "podracer", "sebulba")


def answer_early() -> None:
    """Lets Ctrl-C end this process at once, if it was started as one of our commands.

    An exception would come out of whatever is being imported, with a long traceback, or be
    taken for a package that is broken. There is nothing to clean up yet.
    """
    if _program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def answer_as_usual() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt again: the command has begun."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: Any) -> NoReturn:
    print(f"{_program()}: interrupted", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _program() -> str | None:
    """The command that Python was started with, as a script or by `-m`; else None."""
    words = itertools.dropwhile(
        lambda word: word.startswith("-") and word != "-m", sys.orig_argv[1:]
    )
    first = next(words, "")
    name = next(words, "") if first == "-m" else os.path.basename(first)
    return name if name in COMMANDS else None
