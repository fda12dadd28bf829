"""Hyperparameters searched by Optuna: the space from a Config's fields, a run folder a trial.

space.py: fields to Optuna's distributions; study.py: trials asked for, trained and told;
commands.py: what `anakin tune` and `sebulba tune` have in common.
"""

from podracer.tune.space import make_space
from podracer.tune.study import Trial, tune, tune_together

__all__ = ["Trial", "make_space", "tune", "tune_together"]
