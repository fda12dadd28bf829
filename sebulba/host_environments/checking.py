"""Compares what an environment returns with what it declares.

A wrong observation is otherwise broadcast, cast or clipped to the declared array and
learned from. Sampled: the first steps and each 1,000th, so that it costs nothing.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from podracer.errors import UserError

FIRST_STEPS, EVERY = 20, 1_000  # steps that are checked
KINDS = "biuf"  # of dtypes: boolean, integers, floating point
SLACK = 1e-5  # relative: a bound in double precision, a value in single precision
REMEDY = (
    "correct the environment or what it declares (--env.no-check-bounds ignores bounds)"
)


class Declared(NamedTuple):
    """An array of an observation, as the environment declares it."""

    field: str  # observation, or observation['position']
    shape: tuple[int, ...]
    dtype: np.dtype
    low: Any = None  # None: not bounded
    high: Any = None


class Members(NamedTuple):
    """A dict or a tuple of an observation."""

    field: str
    parts: dict[Any, "Members | Declared"]


def of_spec(spec: Any, field: str = "observation") -> Members | Declared:
    """What a pytree of dm_env specs declares."""
    if parts := parts_of(spec, field):
        return Members(field, {name: of_spec(part, path) for name, part, path in parts})
    low, high = getattr(spec, "minimum", None), getattr(spec, "maximum", None)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "V":  # bfloat16 and its like: NumPy cannot compare them
        raise UserError(f"{field}_spec has dtype {dtype}; declare and give float32")
    return Declared(field, spec.shape, dtype, low, high)


def of_space(space: Any, field: str = "observation") -> Members | Declared:
    """What a gymnasium space of a supported kind declares."""
    if parts := parts_of(getattr(space, "spaces", None), field):
        return Members(
            field, {name: of_space(part, path) for name, part, path in parts}
        )
    low, high = getattr(space, "low", 0), getattr(space, "high", 1)
    if hasattr(space, "nvec") or hasattr(space, "start"):
        low = space.start
        high = low + getattr(space, "nvec", getattr(space, "n", None)) - 1
    return Declared(field, space.shape, np.dtype(space.dtype), low, high)


def parts_of(tree: Any, field: str) -> list[tuple[Any, Any, str]]:
    """(name, part, field) of a dict's or tuple's members; none of anything else."""
    if hasattr(tree, "items"):
        return [(name, part, f"{field}[{name!r}]") for name, part in tree.items()]
    if isinstance(tree, tuple | list):
        return [(i, part, f"{field}[{i}]") for i, part in enumerate(tree)]
    return []


def checker(
    name: str,
    declared: Members | Declared,
    batch: tuple[int, ...] = (),
    bounds: bool = True,
) -> Callable[[Any, Any], None]:
    """(observation, reward) -> None, called each step. Raises UserError if one is wrong.

    Args:
      name: of the environment, for messages.
      declared: `of_spec` or `of_space`.
      batch: leading axes of what the environment returns.
      bounds: whether values are compared with the declared bounds.
    """

    def complaints(observation: Any, reward: Any) -> Iterator[str]:
        yield from complaints_of(declared, observation, batch, bounds)
        yield from _of_reward(reward, batch)

    return sampled(name, complaints, REMEDY)


def action_checker(
    name: str, spec: Any, batch: tuple[int, ...] = ()
) -> Callable[[Any], None]:
    """(action) -> None, called each step. Raises UserError for an invalid action.

    Continuous actions may be outside of their bounds: environments clip them or not.
    """
    declared = _unbounded(of_spec(spec, "action"))

    def complaints(action: Any) -> Iterator[str]:
        return complaints_of(declared, action, batch, True)

    return sampled(name, complaints, "correct the agent")


def _unbounded(declared: Members | Declared) -> Members | Declared:
    """The same without the bounds of what is continuous."""
    if isinstance(declared, Members):
        parts = {name: _unbounded(part) for name, part in declared.parts.items()}
        return declared._replace(parts=parts)
    if declared.dtype.kind == "f":
        return declared._replace(low=-np.inf, high=np.inf)
    return declared


def sampled(
    name: str, complaints: Callable[..., Iterator[str]], remedy: str
) -> Callable[..., None]:
    """Raises UserError for the first complaint of a step, in those that are checked."""
    steps = itertools.count(1)

    def check(*values: Any) -> None:
        step = next(steps)
        if step > FIRST_STEPS and step % EVERY:
            return
        for complaint in complaints(*values):
            raise UserError(f"{name}: {complaint}; {remedy}")

    return check


def complaints_of(
    declared: Members | Declared, value: Any, batch, bounds: bool
) -> Iterator[str]:
    """What is wrong with a value, a line each."""
    if isinstance(declared, Members):
        yield from _of_members(declared, value, batch, bounds)
        return
    field, shape, dtype, low, high = declared
    original = value
    try:
        value = np.asarray(original)
    except ValueError:  # ragged
        yield f"{field} is not an array: {shown(original)}"
        return
    if value.dtype.kind not in KINDS:
        yield f"{field} is {shown(original)}, of dtype {value.dtype}; declared is {dtype}"
    elif value.shape[: len(batch)] != batch:
        yield f"{field} has shape {value.shape}; declared is {(*batch, *shape)}"
    elif value.shape[len(batch) :] != shape:
        yield f"{field} has shape {value.shape[len(batch) :]}; declared is {shape}"
    elif _rank(value.dtype) > _rank(dtype):
        yield f"{field} has dtype {value.dtype}; declared is {dtype}"
    elif bounds and not _trivial(value.dtype, low, high):
        yield from _of_bounds(field, value, low, high)


def _of_members(declared: Members, value: Any, batch, bounds: bool) -> Iterator[str]:
    """The same, of a dict or a tuple."""
    members = {name: part for name, part, _ in parts_of(value, "")}
    if members.keys() != declared.parts.keys():
        what = f"has the members {[*members]}" if members else f"is {shown(value)}"
        yield f"{declared.field} {what}; declared are members {[*declared.parts]}"
        return
    for name, part in declared.parts.items():
        yield from complaints_of(part, members[name], batch, bounds)


def _of_bounds(field: str, value: np.ndarray, low: Any, high: Any) -> Iterator[str]:
    low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
    slack = SLACK if value.dtype.kind == "f" else 0.0
    below = value < low - slack * np.maximum(1.0, np.abs(np.nan_to_num(low)))
    above = value > high + slack * np.maximum(1.0, np.abs(np.nan_to_num(high)))
    wrong = below | above | np.isnan(value)
    if not wrong.any():
        return
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f"{field}{list(index) if index else ''}"
    least, most = (np.broadcast_to(x, value.shape)[index] for x in (low, high))
    yield f"{where} is {value[index]:g}, outside the declared {least:g} to {most:g}"


def _of_reward(reward: Any, batch: tuple[int, ...]) -> Iterator[str]:
    original, reward = reward, np.asarray(reward)
    if reward.dtype.kind not in KINDS or reward.shape not in (batch, (*batch, 1)):
        yield f"reward is {shown(original)}; it must be a number"
    elif not np.isfinite(reward).all():
        yield f"reward is {reward[~np.isfinite(reward)].flat[0]}; it must be finite"


def _rank(dtype: np.dtype) -> int:
    """Values of a kind fit in those of a higher rank."""
    return {"b": 0, "u": 1, "i": 1, "f": 2}[dtype.kind]


def _trivial(dtype: np.dtype, low: Any, high: Any) -> bool:
    """Whether every value of an integer dtype is within the bounds."""
    if dtype.kind not in "iu" or low is None:
        return False
    limits = np.iinfo(dtype)
    return np.min(high) >= limits.max and np.max(low) <= limits.min


def shown(value: Any) -> str:
    """A value in a few characters of one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
