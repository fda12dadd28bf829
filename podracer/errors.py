"""Bad input, reported in one line."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

MOST_SEED = 2**32 - 1  # JAX drops what is above it, so that two seeds would be one
MOST_PLAYED = 10**9  # episodes, or steps of one: JAX counts them with 32 bits


class UserError(ValueError):
    """Bad input: one line that names the field, its value and the way out."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest known name, and all of them if few."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f" did you mean {close[0]!r}?" if close else ""
    few = f" known: {', '.join(known)}" if 0 < len(known) <= 12 else ""
    return f";{guess}{few}" if guess or few else ""


def check_at_least_one(**numbers: int | None) -> None:
    """Raises UserError for the first number below 1; None always passes."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise UserError(f"{name} is {number}; it must be at least 1")


def check_range(name: str, number: float, low: float, high: float = math.inf) -> None:
    """Raises UserError unless low <= number <= high (NaN never is)."""
    if not low <= number <= high:
        limits = f"from {low:g} to {high:g}"
        if -math.inf < low and high == math.inf:
            limits = f"at least {low:g}"
        raise UserError(f"{name} is {number}; it must be {limits}")


def check_ranges(config: Any, low: float, high: float, *names: str) -> None:
    """`check_range` for these fields of a configuration; None always passes."""
    for name in names:
        if getattr(config, name) is not None:
            check_range(name, getattr(config, name), low, high)


def check_seed(first: int, count: int = 1) -> None:
    """Raises UserError for a seed that JAX cannot tell from others.

    Args:
      first: the seed of the first run.
      count: number of runs, whose seeds follow.
    """
    if first < 0 or first + count - 1 > MOST_SEED:
        last = f" to {first + count - 1}" if count > 1 else ""
        raise UserError(f"seed is {first}{last}; it must be from 0 to {MOST_SEED}")


def check_play(episodes: int, max_steps: int, seed: int) -> None:
    """Raises UserError unless this many episodes can be played with this seed."""
    check_range("episodes", episodes, 1, MOST_PLAYED)
    check_range("max_steps", max_steps, 1, MOST_PLAYED)
    check_seed(seed)
