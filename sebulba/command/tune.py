"""`sebulba tune`: an agent's hyperparameters searched by Optuna, one run after another."""

import dataclasses
from collections.abc import Sequence
from functools import partial

from podracer.training import configuring
from podracer.tune import commands
from podracer.tune.study import alone
from sebulba.command import training
from sebulba.command.flags import Train


@dataclasses.dataclass(frozen=True)
class Tune(Train):
    """Searches for an agent's hyperparameters with Optuna: trains run after run, and ends those
    that are worse than most. Flags are those of `sebulba train`, and --tune.

    Leaves a folder with a run folder for each trial, and Optuna's study.log.
    """

    MAIN = ()

    tune: commands.Search = dataclasses.field(default_factory=commands.Search)


def main(argv: Sequence[str]) -> None:
    """Search for an agent's hyperparameters; leaves a folder of runs."""
    configured = configuring.configure(argv, Tune, "sebulba", training.ENVIRONMENTS)
    commands.prepare(configured.config)
    setting = training.prepare(configured)
    train = alone(partial(commands.rows, partial(training.opened, setting)))
    commands.search(train, configured.config, Train, "sebulba", configured.names)
