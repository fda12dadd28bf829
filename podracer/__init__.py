"""Agents for both architectures: `load(RUN)` is a trained one, `record` keeps a run."""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["hosts", "load", "normalizer", "plot", "ranges", "record"]

if TYPE_CHECKING:  # for editors and docs/api, which read this without running it
    from podracer.parallel import hosts
    from podracer.runs import plot
    from podracer.runs.script import record
    from podracer.trained import load
    from podracer.transformations import normalizer, ranges

# What users import from here, loaded where it is asked for: JAX is slow to import.
_ROOMS = {
    "hosts": "parallel",
    "load": "trained",
    "normalizer": "transformations",
    "plot": "runs",
    "record": "runs.script",
    "ranges": "transformations",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'podracer' has no attribute {name!r}")
    room = f"podracer.{_ROOMS[name]}"
    if name in ("load", "record"):
        return getattr(importlib.import_module(room), name)
    return importlib.import_module(f"{room}.{name}")
