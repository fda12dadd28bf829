"""Silences what Orbax and its libraries print: their errors are raised as well."""

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

ORBAX = "/orbax/"  # in the paths of its files


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops Orbax's log, which is hundreds of lines around an error that is raised."""
    logger = logging.getLogger("absl")
    # A filter of its own: leaving this block must not remove that of `drop_late_callbacks`.
    is_foreign = functools.partial(_is_foreign)
    logger.addFilter(is_foreign)
    try:
        yield
    finally:
        logger.removeFilter(is_foreign)


@functools.cache
def drop_late_callbacks() -> None:
    """Drops the tracebacks that come after a save or a read has failed.

    Orbax leaves the other arrays to TensorStore's threads, and its own coroutines to the
    garbage collector, until the process ends: nobody can wait for them, and Python prints
    what they raise, or Orbax logs it. So its hook for that is replaced, once and for the
    whole process; it still gets everything else.
    """
    logging.getLogger("absl").addFilter(_is_foreign)
    hook = sys.unraisablehook

    def unraisable(error: Any) -> None:
        late = (
            error.exc_type is RuntimeError and "loop is closed" in f"{error.exc_value}"
        )
        if not late and not _is_orbax(error.exc_traceback):
            hook(error)

    sys.unraisablehook = unraisable
    logging.getLogger("asyncio").addFilter(
        lambda record: not (record.exc_info and _is_orbax(record.exc_info[2]))
    )


def _is_foreign(record: logging.LogRecord) -> bool:
    return ORBAX not in _path(record.pathname)


def _is_orbax(raised: TracebackType | None) -> bool:
    """Whether the outermost frame is Orbax's, as in its coroutines."""
    return raised is not None and ORBAX in _path(raised.tb_frame.f_code.co_filename)


def _path(name: str) -> str:
    return name.replace("\\", "/")
