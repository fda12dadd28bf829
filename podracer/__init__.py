"""Agents for both architectures: `load(RUN)` is a trained one, `record` keeps a run."""

import sys
from typing import TYPE_CHECKING

if sys.platform == "win32":
    raise ImportError(
        "podracer runs on Linux and macOS, and on Windows inside WSL 2: `wsl --install`, "
        "then install it there"
    )

from podracer import interrupts

interrupts.answer_early()

from podracer.imports import at_first_use

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

__getattr__, __dir__ = at_first_use(  # JAX is slow to import
    __name__,
    __all__,
    {
        "hosts": "parallel.hosts",
        "load": "trained:load",
        "normalizer": "transformations.normalizer",
        "plot": "runs.plot",
        "record": "runs.script:record",
        "ranges": "transformations.ranges",
    },
)
