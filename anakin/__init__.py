"""Anakin: environments in JAX, everything in one program (arXiv:2104.06272)."""

from anakin.evaluation import evaluate, film
from anakin.training import State, train

__all__ = ["State", "evaluate", "film", "train"]
