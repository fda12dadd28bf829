"""A configuration's values: as JSON keeps them, and in what two configurations differ."""

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import typeguard

from podracer.errors import UserError, nearest

Config = TypeVar("Config")
OURS = ("podracer", "anakin", "sebulba", "envs_jax")  # other packages are a user's
PLAIN = str, int, float, bool  # JSON has them as they are
# Annotates a field that may differ: the one beside it has the checksum of what it names.
PINNED = "pinned by a checksum"
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def changes(before: Any, after: Any, prefix: str = "") -> Iterator[str]:
    """`field: 1 -> 2` for each field in which two configurations differ, but `PINNED` ones."""
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if PINNED in typing.get_args(field.type):
            continue
        if dataclasses.is_dataclass(old):
            yield from changes(old, new, f"{prefix}{field.name}.")
        elif _differ(old, new):
            yield f"{prefix}{field.name}: {old} -> {new}"


def _differ(old: Any, new: Any) -> bool:
    try:
        return old is not new and bool(old != new)
    except ValueError:  # arrays, of a user's own dataclass
        return str(old) != str(new)


def filled(default: Config, values: Mapping[str, Any], where: str = "") -> Config:
    """`default`, a dataclass, with the values that JSON or YAML has for it.

    Raises UserError for a field that it does not have, and for a value of another type.
    """
    if not isinstance(values, Mapping):
        name = where.rstrip(".") or "the configuration"
        raise UserError(f"{name} is {values!r}; it must be an object of fields")
    fields = {
        field.name: getattr(default, field.name)
        for field in dataclasses.fields(default)
    }
    if unknown := sorted(map(str, values.keys() - fields.keys())):
        kind = type(default)
        whose = (
            "is unknown to this version of podracer (another one may have written it)"
            if kind.__module__.partition(".")[0] in OURS
            else f"is no field of {kind.__module__}.{kind.__qualname__} (was it renamed?)"
        )
        raise UserError(f"{where}{unknown[0]} {whose}{nearest(unknown[0], fields)}")
    hints = typing.get_type_hints(type(default), include_extras=False)
    replaced = {
        name: filled(fields[name], value, f"{where}{name}.")
        if dataclasses.is_dataclass(fields[name])
        else _checked(f"{where}{name}", value, hints[name], fields[name])
        for name, value in values.items()
    }
    try:
        return dataclasses.replace(default, **replaced)
    except ValueError as error:  # from a dataclass that checks its own values
        raise UserError(f"{where}{error}") from error


def _checked(name: str, value: Any, hint: Any, default: Any) -> Any:
    """A value from JSON as its field's type. Raises UserError for another type."""
    value = _hashable(value)
    if not isinstance(default, PLAIN) and _text(value) == _text(default):
        return default  # of a user's own type, which JSON has as text
    if isinstance(value, str) and (isinstance(default, Path) or _is_path(hint)):
        value = Path(value)
    try:
        # To Python a bool is an int, too; YAML has `yes` for True.
        if not isinstance(value, bool) or _may_be_bool(hint):
            return typeguard.check_type(value, hint)
    except typeguard.TypeCheckError:
        pass
    kind = (
        getattr(hint, "__name__", str(hint))
        if hint in (int, float, bool, str)
        else hint
    )
    raise UserError(
        f"{name} is {value!r}; it must be of type {kind}".replace("typing.", "")
    )


def _text(value: Any) -> Any:
    """As JSON has it, without the addresses of objects, which another process changes."""
    if isinstance(value, tuple):
        return tuple(map(_text, value))
    return ADDRESS.sub("", str(value))


def _may_be_bool(hint: Any) -> bool:
    kinds = (hint, *typing.get_args(hint))
    return bool in kinds or not (int in kinds or float in kinds)


def _is_path(hint: Any) -> bool:
    return hint is Path or Path in typing.get_args(hint)


def _hashable(value: Any) -> Any:
    """JSON has lists for tuples."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
