"""Agents for both architectures: `load(RUN)` is a trained one, `record` keeps a run."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "podracer runs on Linux and macOS, and on Windows inside WSL 2: `wsl --install`, "
        "then install it there"
    )

from podracer import interrupts

__all__ = [
    "hosts",
    "load",
    "normalizer",
    "parallel",
    "plot",
    "ranges",
    "record",
    "tune",
]

if TYPE_CHECKING:  # for editors and docs/api, which read this without running it
    from podracer import parallel, tune
    from podracer.parallel import hosts
    from podracer.runs import plot
    from podracer.runs.script import record
    from podracer.trained import load
    from podracer.transformations import normalizer, ranges

# What users import from here, loaded where it is asked for: JAX is slow to import.
_MODULES = {
    "hosts": "parallel.hosts",
    "load": "trained",
    "normalizer": "transformations.normalizer",
    "parallel": "parallel",
    "plot": "runs.plot",
    "record": "runs.script",
    "ranges": "transformations.ranges",
    "tune": "tune",
}

interrupts.answer_early()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'podracer' has no attribute {name!r}")
    module = importlib.import_module(f"podracer.{_MODULES[name]}")
    return getattr(module, name) if name in ("load", "record") else module
