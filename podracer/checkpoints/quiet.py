"""Silences what Orbax and its libraries print: their errors are raised as well."""

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from typing import Any

ORBAX = "/orbax/"  # in the paths of its files


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops Orbax's log, which is hundreds of lines around an error that is raised."""
    logger = logging.getLogger("absl")

    def is_foreign(record: logging.LogRecord) -> bool:
        return ORBAX not in record.pathname.replace("\\", "/")

    logger.addFilter(is_foreign)
    try:
        yield
    finally:
        logger.removeFilter(is_foreign)


@functools.cache
def drop_late_callbacks() -> None:
    """Drops the tracebacks of TensorStore's callbacks that come after a save has failed.

    They come from its own threads, until the process ends: nobody can wait for them.
    """
    hook = sys.unraisablehook

    def unraisable(error: Any) -> None:
        late = (
            error.exc_type is RuntimeError and "loop is closed" in f"{error.exc_value}"
        )
        if not late:
            hook(error)

    sys.unraisablehook = unraisable
