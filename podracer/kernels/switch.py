"""The one switch of all kernels: off until `install`, and off again by `off`."""

import contextlib
import os
from collections.abc import Iterator

from podracer.errors import UserError, nearest

NAMES = (
    "blocking",
    "collectives",
    "convolution",
    "foreign",
    "loops",
    "products",
    "rows",
    "shuffling",
    "threefry",
    "xla",
)
# off, or the names of kernels to leave out: -blocking,-xla
VARIABLE = "PODRACER_KERNELS"

_installed = False
_left_out: set[str] = set()


def is_on(name: str) -> bool:
    """Whether programs that are traced now use this kernel."""
    return _installed and name not in _left_out


def turn_on() -> None:
    """Turns on all kernels but those that PODRACER_KERNELS or `off` leaves out.

    Raises UserError for a PODRACER_KERNELS that is neither `on`, `off` nor names to leave out.
    """
    global _installed  # of the process, as JAX's own switches are
    if not _installed:
        _left_out.update(_of_variable(os.environ.get(VARIABLE, "on")))
        _installed = True


def off(*names: str) -> None:
    """Programs that are traced from now on are plain JAX, or do without these kernels.

    `install`, which every `train` calls, turns none of them on again.
    """
    _left_out.update(names or NAMES)


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """As `off`, within the block."""
    before = set(_left_out)
    off(*names)
    try:
        yield
    finally:
        _left_out.clear()
        _left_out.update(before)


def _of_variable(value: str) -> set[str]:
    if value in ("", "on", "off"):
        return set(NAMES) if value == "off" else set()
    names = {x.strip() for x in value.split(",")}
    for name in sorted(names):
        if name[:1] != "-" or name[1:] not in NAMES:
            raise UserError(
                f"{VARIABLE} is {value!r}: {name!r} is not known"
                f"{nearest(name.lstrip('-'), NAMES)}; it must be on, off, or kernels to leave "
                f"out, as -{',-'.join(NAMES[:2])}"
            )
    return {name[1:] for name in names}
