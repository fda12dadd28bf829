"""Anakin: environments in JAX, everything in one program (arXiv:2104.06272)."""

import podracer  # noqa: F401 first: from here on Ctrl-C is one line
from anakin.evaluation import evaluate, film
from anakin.training import State, train

__all__ = ["State", "evaluate", "film", "train"]
