"""The command line of frozen dataclasses: a configuration, or one line on what is wrong.

flags.py: flags to a dataclass; values.py: a dataclass to JSON and back; ends.py: exit codes
and signals; programs.py: what was compiled is kept.
"""

from podracer.command.ends import dispatch, exits, stopping
from podracer.command.flags import (
    Choice,
    Flat,
    check_not_empty,
    choice,
    choose,
    parse,
    read,
)
from podracer.command.programs import keep_programs
from podracer.command.values import PINNED, changes, filled

__all__ = [
    "PINNED",
    "Choice",
    "Flat",
    "changes",
    "check_not_empty",
    "choice",
    "choose",
    "dispatch",
    "exits",
    "filled",
    "keep_programs",
    "parse",
    "read",
    "stopping",
]
