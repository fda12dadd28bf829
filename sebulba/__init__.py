"""Sebulba: environments on the host, actor and learner cores (arXiv:2104.06272)."""

from sebulba import cores, host_environments
from sebulba.evaluation import evaluate, film
from sebulba.training import State, train

__all__ = ["State", "cores", "evaluate", "film", "host_environments", "train"]
