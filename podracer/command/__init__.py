"""The command line of frozen dataclasses: a configuration, or one line on what is wrong.

flags.py: flags to a dataclass; values.py: a dataclass to JSON and back; ends.py: exit codes
and signals; programs.py: the cache of compiled programs.
"""

from podracer.command.ends import dispatch, exits, of_module, stopping
from podracer.command.flags import (
    Choice,
    Environments,
    Flat,
    check_not_empty,
    choose,
    make_choice,
    parse,
    read,
)
from podracer.command.programs import keep_programs
from podracer.command.values import PINNED, changes, filled

__all__ = [
    "PINNED",
    "Choice",
    "Environments",
    "Flat",
    "changes",
    "check_not_empty",
    "choose",
    "dispatch",
    "exits",
    "filled",
    "keep_programs",
    "make_choice",
    "of_module",
    "parse",
    "read",
    "stopping",
]
