"""Flags from frozen dataclasses, by tyro: a configuration, or one line on what is wrong."""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import re
import shutil
import textwrap
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

from podracer.errors import UserError, nearest

Config = TypeVar("Config")
# A field whose own fields are flags without its name before them.
Flat = Annotated[Config, tyro.conf.arg(name="")]


class Choice(NamedTuple):
    """A flag that is read before the others: which of them exist depends on its value."""

    flag: str
    name: str | bool | None  # the value
    known: tuple[str, ...]  # empty: any name may do
    help: str


class Environments(NamedTuple):
    """What a command knows of environments."""

    default: str  # name of one
    choose: Callable[[str], Choice]  # (name) -> --env; UserError if unknown
    default_options: Callable[[str], Any]  # (name) -> a dataclass, which --env.* change
    brings_code: Callable[[str], bool]  # whether that name imports a user's code


def read(
    argv: Sequence[str],
    flags: Mapping[str, Iterable[str]],
    switches: Iterable[str] = (),
) -> dict[str, Any]:
    """Reads flags in one pass, before the rest of the command line can be parsed.

    Args:
      argv: the command line.
      flags: `--flag VALUE`, each with the values that an error should suggest.
      switches: flags without a value.

    Returns:
      The value of each flag, None where it is absent, and whether each switch is there.

    Raises:
      UserError: a value is missing or empty.
    """
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False
    )
    for flag in flags:
        parser.add_argument(f"--{flag}", dest=flag)
    for flag in switches:
        parser.add_argument(f"--{flag}", dest=flag, action="store_true")
    try:
        values = vars(parser.parse_known_args(argv)[0])
    except argparse.ArgumentError as error:
        flag = (error.argument_name or "").lstrip("-")
        if flag in flags:
            known = nearest("", flags[flag])
            raise UserError(f"--{flag}: a name is missing{known}") from None
        raise UserError(f"--{flag}: takes no value (see --help)") from None
    # argparse drops the value of --flag=--
    return {flag: "--" if value == [] else value for flag, value in values.items()}


def make_choice(flag: str, name: str, known: Iterable[str], help: str = "") -> Choice:
    """`--flag NAME` of a list of names. Raises UserError for a name that is not in it."""
    known = tuple(known)
    if known and name not in known:
        raise UserError(f"--{flag}: unknown name {name!r}{nearest(name, known)}")
    return Choice(flag, name, known, help)


def choose(
    argv: Sequence[str], flag: str, known: Iterable[str], default: str, help: str = ""
) -> Choice:
    """`read` and `make_choice` for a command with only one such flag."""
    known = tuple(known)
    name = read(argv, {flag: known})[flag]
    return make_choice(flag, default if name is None else name, known, help)


def check_not_empty(argv: Sequence[str]) -> None:
    """Raises UserError for an empty argument: an unset shell variable, not a path."""
    for before, argument in zip(["", *argv], argv):
        flag, equals, value = argument.partition("=")
        if argument and not (flag.startswith("--") and equals and not value):
            continue
        name = flag or (before if before.startswith("-") else "an argument")
        raise UserError(f"{name} is empty (an unset shell variable?): give it a value")


def parse(
    default: Config, argv: Sequence[str], program: str, choices: Iterable[Choice] = ()
) -> Config:
    """`default`, a frozen dataclass, with the fields that the flags change.

    A field that holds another dataclass has that dataclass's fields as flags, whatever
    its annotation. `choices` are known already and only shown by `--help`, which exits. Where
    `default` has MAIN, the flags that most people use, it shows these; `--help all` the others.
    Raises UserError for an unknown flag, an empty argument and a value that does not fit.
    """
    choices = tuple(choices)
    check_not_empty(argv)
    fields: list[Any] = [
        (c.flag, Annotated[_kind(c), tyro.conf.arg(help=c.help)], c.name)
        for c in choices
    ]
    fields += [("parsed", Annotated[type(default), tyro.conf.arg(name="")], default)]
    flags = [f"--{choice.flag}" for choice in choices] + list(_flags(default))
    kind = dataclasses.make_dataclass("Flags", fields, frozen=True)
    asked = {"-h", "--help"}.intersection(argv)
    if asked and (main := getattr(default, "MAIN", ())):
        rest = itertools.dropwhile(lambda x: x not in asked, argv)
        shown = None if [*rest][1:2] == ["all"] else main
        with _one_line():
            print(_help(kind, program, inspect.getdoc(default) or "", shown))
        raise SystemExit(0)
    try:
        with _one_line():
            parsed, unknown = tyro.cli(
                kind,
                prog=program,
                description=inspect.getdoc(default),
                args=_whole_numbers(default, argv),
                return_unknown_args=True,
            )
    except UserError as error:
        # With a flag that it does not know, tyro blames an argument without one: [PATH].
        like_flags = [x for x in argv if re.match("-+[a-zA-Z]", x)]
        unknown = [x for x in like_flags if x.partition("=")[0] not in flags]
        if not (unknown and str(error).startswith("[")):
            raise
    if unknown:
        raise UserError(_explain(unknown[0], argv, flags))
    return parsed.parsed


def _help(kind: type, program: str, about: str, shown: Sequence[str] | None) -> str:
    """The help of a command: the flags `shown`, without their dashes; None: all of them."""
    with (
        warnings.catch_warnings()
    ):  # the only way to the texts before tyro draws its boxes
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(kind)
    wide = min(100, shutil.get_terminal_size().columns) - 1
    wrap = functools.partial(
        textwrap.fill, width=wide, break_long_words=False, break_on_hyphens=False
    )
    lines = [f"usage: {program} [OPTIONS]", "", about, "", "options:"]
    for action in parser._actions:
        name = action.option_strings[0].removeprefix("--")
        if name == "-h" or (shown is not None and name not in shown):
            continue
        words = ", ".join(action.option_strings)
        values = f"{action.metavar or ''}".replace("{None}|", "").replace(",", ", ")
        lines.append(
            wrap(f"{words} {values}", initial_indent="  ", subsequent_indent="    ")
        )
        text = " ".join((action.help or "").split()).replace("(default: None)", "")
        text = text.replace("(default: ", "(default:\N{NO-BREAK SPACE}").strip()
        lines.append(wrap(text, initial_indent="      ", subsequent_indent="      "))
    if shown is not None:
        number = len(parser._actions) - 1
        lines += [
            "",
            wrap(f"{program} --help all shows {number} flags, the agent's too"),
        ]
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def _whole_numbers(config: Any, argv: Sequence[str]) -> list[str]:
    """The command line with `1e6` as Python's int reads it, where a flag takes an int."""
    kinds = dict(_kinds(config))
    words = [*argv]
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if not equals:
            flag, value = (words[i - 1] if i else ""), word
        number = re.fullmatch(r"(\d+)(?:\.(\d*))?[eE]\+?(\d{1,2})", value)
        if number is None or not _takes_int(kinds.get(flag)):
            continue
        before, after, exponent = number[1], number[2] or "", int(number[3])
        if len(after.rstrip("0")) <= exponent:
            whole = int(before + after.rstrip("0")) * 10 ** (
                exponent - len(after.rstrip("0"))
            )
            words[i] = f"{flag}={whole}" if equals else f"{whole}"
    return words


def _takes_int(kind: Any) -> bool:
    kinds = (kind, *typing.get_args(kind))
    return int in kinds and float not in kinds


def _kind(choice: Choice) -> Any:
    """The type of a choice, for tyro."""
    if isinstance(choice.name, bool):
        return bool
    if choice.known:
        return Literal[choice.known]
    return str if choice.name is not None else str | None


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turns the boxes that tyro draws on stderr into a UserError."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            yield
    except SystemExit as exit:
        if not exit.code:
            raise
        raise UserError(_unbox(stderr.getvalue())) from None
    except ValueError as error:  # of a dataclass that checks its own values
        raise UserError(str(error)) from error
    except (TypeError, NameError) as error:  # of a user's own dataclass
        raise UserError(
            "its fields cannot be flags, which are bool, int, float, str, and tuples and "
            f"choices of these: {error}"
        ) from error


def _unbox(box: str) -> str:
    """The message in a box, with the help on its flag if that is there."""
    lines = [
        line.strip(" │|") for line in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines()
    ]
    message, *sections = [
        " ".join(section)
        for has_words, section in itertools.groupby(
            lines[1:], lambda line: bool(re.search(r"\w", line))
        )
        if has_words
    ]
    # As the flags are called: those of `keep` have no prefix.
    message = re.sub(r"^Error parsing (parsed(\.keep)?(\.|: ))?", "", message)
    for section in sections:
        if section.startswith("Argument helptext: "):
            message = message.rstrip(".") + section.replace(
                "Argument helptext", "; usage"
            )
    return message


def _explain(token: str, argv: Sequence[str], flags: Sequence[str]) -> str:
    """The error for an argument that belongs to no flag."""
    if token.startswith("-"):
        flag = token.partition("=")[0]
        part = flag[: flag.rfind(".") + 1]  # as --agent.
        like = [known for known in flags if known.startswith(part)] or flags
        return f"{token}: no such flag{nearest(flag, like)} (see --help)"
    before = itertools.takewhile(lambda arg: arg != token, argv)
    flag = next((f" after {a}" for a in reversed([*before]) if a.startswith("-")), "")
    return f"{token!r}: unexpected{flag} (see --help)"


def _flags(config: Any) -> Iterator[str]:
    """The flags of a dataclass, as tyro names them."""
    return (flag for flag, _ in _kinds(config))


def _kinds(config: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """The flags of a dataclass, as tyro names them, and the type of each."""
    for field in dataclasses.fields(config):
        value, word = getattr(config, field.name), field.name.rstrip("_")
        # As in `lambda_`, whose last underscore tyro keeps.
        name = word.replace("_", "-") + field.name[len(word) :]
        if tyro.conf.Positional in getattr(field.type, "__metadata__", ()):
            continue
        if field.type == Flat[type(value)]:
            yield from _kinds(value, prefix)
        elif dataclasses.is_dataclass(value):
            yield from _kinds(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.type
        if isinstance(value, bool):
            yield f"{prefix}no-{name}", field.type
