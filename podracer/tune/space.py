"""A search space from the fields of a dataclass: `learning_rate=1e-5..1e-2`."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from podracer import imports
from podracer.command import spaces
from podracer.errors import UserError, nearest

LOGARITHMIC = 10.0  # of high / low, from which a range of floats is searched so


def make_space(config: Any, texts: Sequence[str]) -> dict[str, Any]:
    """Optuna's distribution of each field that is searched, by its name.

    Args:
      config: a frozen dataclass, whose own values are those of the first trial.
      texts: `FIELD=LOW..HIGH` for a number, on a logarithmic scale if it is a float, LOW is
        above 0 and HIGH at least ten times as large; `FIELD=VALUE,VALUE` for numbers,
        choices and bools. Field names may be written as flags are.

    Raises:
      UserError: a field is unknown, named twice or of another type; a range is empty or
        leaves out the config's own value; the config refuses an end of it.
    """
    kinds = _searchable(config)
    if not texts:
        raise UserError(
            "tune.fields is empty; name what to search, for example "
            f"learning_rate=1e-5..1e-2: {', '.join(kinds)}"
        )
    space: dict[str, Any] = {}
    for text in texts:
        name, values = spaces.assignment(text)
        if name not in kinds:
            raise UserError(
                f"tune.fields: unknown field {name!r}{nearest(name, kinds)}"
            )
        if name in space:
            raise UserError(f"tune.fields has {name} twice: give one range")
        if not values:
            raise UserError(
                f"tune.fields is {text!r}; it must be {name}={_form(kinds[name])}"
            )
        space[name] = _distribution(config, name, kinds[name], values)
    return space


def is_of_floats(space: dict[str, Any]) -> bool:
    """Whether all values are floats, in which the runs of one program may differ."""
    is_range = imports.Lazy("optuna").distributions.FloatDistribution
    return all(
        isinstance(x, is_range) or {*map(type, getattr(x, "choices", (0,)))} == {float}
        for x in space.values()
    )


def _searchable(config: Any) -> dict[str, Any]:
    """The fields that can be searched and their types: float, int, bool or a Literal."""
    hints = typing.get_type_hints(type(config))
    kinds = {
        field.name: _plain(hints[field.name]) for field in dataclasses.fields(config)
    }
    return {
        name: kind
        for name, kind in kinds.items()
        if kind in (float, int, bool) or typing.get_origin(kind) is Literal
    }


def _plain(hint: Any) -> Any:
    """The type of an optional field where it is set."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [x for x in typing.get_args(hint) if x is not type(None)]
        return kinds[0] if len(kinds) == 1 else hint
    return hint


def _form(kind: Any) -> str:
    if kind in (float, int):
        return "LOW..HIGH or VALUE,VALUE"
    return ",".join(map(str, _choices(kind)))


def _choices(kind: Any) -> tuple[Any, ...]:
    return (True, False) if kind is bool else typing.get_args(kind)


def _distribution(config: Any, name: str, kind: Any, text: str) -> Any:
    """Optuna's distribution of one field."""
    distributions = imports.Lazy("optuna").distributions
    if kind in (float, int) and ".." in text:
        low, high = _finite(name, kind, text, spaces.limits)
        if low >= high:
            raise UserError(
                f"tune.fields: {name}={text} is empty: LOW must be below HIGH"
            )
        _check(config, name, text, (low, high), lambda x: low <= x <= high)
        if kind is int:
            return distributions.IntDistribution(low, high)
        logarithmic = low > 0 and high / low >= LOGARITHMIC
        return distributions.FloatDistribution(low, high, log=logarithmic)
    values = [*_values(name, kind, text)]
    if len(values) < 2 or len(set(values)) < len(values):
        raise UserError(
            f"tune.fields: {name}={text} must be different values, two or more"
        )
    _check(config, name, text, values, values.__contains__)
    return distributions.CategoricalDistribution(values)


def _values(name: str, kind: Any, text: str) -> Iterator[Any]:
    """The values of `VALUE,VALUE`."""
    if kind in (float, int):
        yield from _finite(name, kind, text, spaces.numbers)
        return
    for part in text.split(","):
        known = {str(x).lower(): x for x in _choices(kind)}
        if part.lower() not in known:
            raise UserError(
                f"tune.fields: {name} has no value {part!r}{nearest(part.lower(), known)}"
            )
        yield known[part.lower()]


def _finite(name: str, kind: type, text: str, read: Callable) -> Any:
    """`read(text, kind)`. Raises UserError where it raises ValueError."""
    try:
        return read(text, kind)
    except ValueError:
        word = "whole numbers" if kind is int else "finite numbers"
        raise UserError(
            f"tune.fields: {name}={text} must be {_form(kind)}, of {word}"
        ) from None


def _check(
    config: Any, name: str, text: str, values: Sequence[Any], has: Callable[[Any], bool]
) -> None:
    """Raises UserError where the config refuses a value, or has one that is not searched."""
    for value in values:
        try:
            dataclasses.replace(config, **{name: value})
        except ValueError as error:
            raise UserError(f"tune.fields: {name}={text}: {error}") from error
    own = getattr(config, name)
    if own is None or not has(own):
        raise UserError(
            f"tune.fields: {name}={text} leaves out {own}, with which the first trial "
            f"begins: add it, or set --agent.{name.replace('_', '-')} to one of these"
        )
