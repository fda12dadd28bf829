"""Anakin: environments in JAX, everything in one program (arXiv:2104.06272)."""

from typing import TYPE_CHECKING

import podracer  # noqa: F401 first: from here on Ctrl-C is one line
from podracer.imports import at_first_use

__all__ = ["State", "evaluate", "film", "train"]

if TYPE_CHECKING:  # for editors and docs/api, which read this without running it
    from anakin.evaluation import evaluate, film
    from anakin.training import State, train

__getattr__, __dir__ = at_first_use(  # JAX is slow to import
    __name__,
    __all__,
    {
        "State": "training:State",
        "evaluate": "evaluation:evaluate",
        "film": "evaluation:film",
        "train": "training:train",
    },
)
