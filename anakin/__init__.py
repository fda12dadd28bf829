"""Anakin: environments in JAX, everything in one program (arXiv:2104.06272)."""

from anakin.training import State, train

__all__ = ["State", "train"]
