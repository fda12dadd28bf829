"""Using a trained agent: `load` it, evaluate it, render it."""

from podracer.trained.policy import load

__all__ = ["load"]
