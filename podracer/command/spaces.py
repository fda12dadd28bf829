"""Search spaces: `FIELD=LOW..HIGH` of the agent's hyperparameters."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from podracer.errors import UserError


class Range(NamedTuple):
    """Where a hyperparameter may be: on a logarithmic scale, or a linear one if low <= 0."""

    low: float
    high: float

    def at(self, place: Any) -> Any:
        """The value at a place from 0 (low) to 1 (high) of the scale; any shape."""
        if self.low <= 0.0:
            return self.low + place * (self.high - self.low)
        return self.low * (self.high / self.low) ** place

    def place(self, value: Any) -> Any:
        """The place of a value: the inverse of `at`."""
        if self.low <= 0.0:
            return (value - self.low) / (self.high - self.low)
        import jax.numpy as jnp  # which a list of runs does not need

        return jnp.log(value / self.low) / math.log(self.high / self.low)


def ranges(texts: Sequence[str], flag: str) -> dict[str, Range]:
    """The ranges by field, of `learning-rate=1e-5..1e-2`. Raises UserError."""
    found: dict[str, Range] = {}
    for text in texts:
        name, ends = assignment(text)
        try:
            low, high = limits(ends, float)
        except ValueError:
            raise UserError(
                f"{flag} is {text!r}; it must be FIELD=LOW..HIGH, as "
                "learning-rate=1e-5..1e-2, of finite numbers"
            ) from None
        if low >= high:
            raise UserError(f"{flag} is {text!r}; LOW must be below HIGH")
        if name in found:
            raise UserError(f"{flag} has {name} twice: leave one of them out")
        found[name] = Range(low, high)
    return found


def assignment(text: str) -> tuple[str, str]:
    """The field and the text of its values, "" for none, of `agent.learning-rate=VALUES`."""
    flag, _, values = text.removeprefix("agent.").partition("=")
    return flag.replace("-", "_"), values


def limits(text: str, kind: Callable[[str], Any]) -> tuple[Any, Any]:
    """LOW and HIGH of `LOW..HIGH`. Raises ValueError where they are not finite numbers."""
    low, high = _finite(map(kind, text.split("..")))
    return low, high


def numbers(text: str, kind: Callable[[str], Any]) -> list[Any]:
    """Those of `VALUE,VALUE`. Raises ValueError where one is not a finite number."""
    return _finite(map(kind, text.split(",")))


def _finite(values: Iterable[Any]) -> list[Any]:
    found = [*values]
    if not all(map(math.isfinite, found)):
        raise ValueError("not finite")
    return found


def floats(agent: Any) -> list[str]:
    """The fields of an agent's configuration in which runs of one program can differ."""
    return [f.name for f in dataclasses.fields(agent) if f.type in (float, "float")]


def listed(agent: Any) -> str:
    """The same, as flags are written."""
    return ", ".join(x.replace("_", "-") for x in floats(agent))


def check_takes(agent: Any, name: str, value: float, flag: str) -> None:
    """Raises UserError unless the agent has a float of that name, which may be `value`."""
    if name not in floats(agent):
        raise UserError(
            f"{flag} has {name}; it must be one of the agent's float hyperparameters: "
            f"{listed(agent)}"
        )
    try:
        dataclasses.replace(agent, **{name: value})
    except ValueError as error:
        raise UserError(f"{flag}: {error}") from error
