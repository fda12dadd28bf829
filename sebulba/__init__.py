"""Sebulba: environments on the host, actor and learner cores (arXiv:2104.06272)."""

import podracer  # noqa: F401 first: from here on Ctrl-C is one line
from sebulba import cores, host_environments
from sebulba.evaluation import evaluate, film
from sebulba.training import State, train

__all__ = ["State", "cores", "evaluate", "film", "host_environments", "train"]
