"""Disco103, a published update rule: rule.py composes the pure functions beside it."""

from podracer.rules.disco.rule import Config, State, make_rule
from podracer.rules.disco.weights import Weights, load

__all__ = ["Config", "State", "Weights", "load", "make_rule"]
