"""The flags of `sebulba train`, `sebulba plan` and `sebulba evaluate`."""

import dataclasses
from typing import Literal

from podracer.errors import check_at_least_one, check_range
from podracer.trained import evaluating
from podracer.training import flags
from sebulba.host_environments.options import check_threads

MOST_THREADS = 64  # of an actor core: hundreds would hold up the learner for minutes
MOST_SEEDS = 2**16  # runs of one command, each with a folder


@dataclasses.dataclass(frozen=True)
class Train(flags.Train):
    """Trains an agent in environments on the host: some cores act, others learn.

    Leaves a run folder with config.json, metrics.jsonl and curve.png.
    """

    batch_size: int = 96
    """number of environments of each actor thread, and of an update; a preset has its own"""
    unroll_length: int = 20
    """number of environment steps in a trajectory; a preset has its own"""
    seed: int = 0
    """random seed; equal seeds give identical runs in lock-step only, see max_lag"""
    cores: int | None = None
    """number of virtual CPU devices, where there is only a CPU; default: its threads"""
    updates_per_trajectory: int = 1
    """number of updates from each trajectory, each from an equal part of its batch"""
    actor_cores: int | None = None
    """number of cores that act; default: a quarter"""
    learner_cores: int | None = None
    """number of cores that learn; default: the rest"""
    threads_per_core: int = 2
    """number of actor threads for each actor core: while one steps its environments, the
    core answers another; some presets have their own"""
    env_threads: int | None = None
    """number of C++ threads for each batch of environments; default: an equal share of the
    CPU's"""
    max_lag: int | None = None
    """largest number of updates between acting and learning; None: no limit, the default of
    most presets. Below updates_per_trajectory the two take turns; 0 with one actor thread is
    lock-step: equal seeds give identical runs"""
    late: Literal["wait", "drop"] = "wait"
    """how max_lag is kept: actors wait, or late trajectories are dropped"""
    seeds: int = 1
    """number of runs to train one after another, with this seed and those that follow"""

    @property
    def number_of_seeds(self) -> int:
        """How many runs there are, each with a seed of its own."""
        return self.seeds

    def __post_init__(self):
        super().__post_init__()
        check_at_least_one(
            updates_per_trajectory=self.updates_per_trajectory,
        )
        check_range("seeds", self.seeds, 1, MOST_SEEDS)
        check_threads(self.env_threads)
        check_range("threads_per_core", self.threads_per_core, 1, MOST_THREADS)
        if self.max_lag is not None:
            check_range("max_lag", self.max_lag, 0)


@dataclasses.dataclass(frozen=True)
class Plan(Train):
    """Compiles what `sebulba train` would run with these flags for a TPU slice, on all of
    its hosts alike and without a TPU, and prints what the compiler says about it.
    """

    MAIN = ()


@dataclasses.dataclass(frozen=True)
class Evaluate(evaluating.Config):
    __doc__ = evaluating.Config.__doc__

    environments: int = 16
    """number of environments that play at once"""

    def __post_init__(self):
        super().__post_init__()
        check_at_least_one(environments=self.environments)
