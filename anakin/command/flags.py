"""The flags of `anakin train` and `anakin plan`."""

import dataclasses
from typing import Any

from anakin import adaptation
from podracer.errors import UserError, check_at_least_one, check_range
from podracer.training import flags

MOST_SEEDS = 2**16  # runs in one program, each with a folder


@dataclasses.dataclass(frozen=True)
class Train(flags.Train):
    """Trains an agent in a JAX environment: one program on all cores.

    Leaves a run folder with config.json, metrics.jsonl and curve.png.
    """

    batch_size: int = 64
    """number of environments, over all cores; a preset has its own"""
    cores: int | None = None
    """number of cores to use on each host; default: all (on a CPU the most that share the
    batch, or the runs, equally)"""
    updates_per_report: int | None = None
    """number of updates between two reports; default: a hundredth of the run"""
    reset_pool: int | None = None
    """number of new episodes that a core's environments share at a step, for environments
    with expensive resets; default: each has its own"""
    seeds: int = 1
    """number of runs to train side by side in one program, with this seed and those that
    follow"""
    sweep: tuple[str, ...] = ()
    """runs side by side with different hyperparameters: learning-rate=1e-3,3e-3"""
    schedule: tuple[str, ...] = ()
    """hyperparameters that change with the environment steps of the run,
    learning-rate=0:1e-3,500_000:1e-4, or the folder of a population or of its member, whose
    schedule is repeated"""
    population: int | None = None
    """number of members of a population to train side by side, with hyperparameters from
    pbt.fields that adapt as it trains (population based training)"""
    pbt: adaptation.Config = dataclasses.field(default_factory=adaptation.Config)

    def __post_init__(self):
        super().__post_init__()
        check_at_least_one(
            seeds=self.seeds,
            updates_per_report=self.updates_per_report,
            reset_pool=self.reset_pool,
        )
        check_range("seeds", self.seeds, 1, MOST_SEEDS)
        self._check_population()
        if self.together and self.keep.is_for_one_run:
            raise UserError(
                "--evaluate.steps, --stop-at and --profile are for one run: leave them "
                "out, or --seeds, --sweep and --population"
            )

    def _check_population(self) -> None:
        if self.population is None:
            if self.pbt != adaptation.Config():
                raise UserError("--pbt.* are for a population: add --population 16")
            return
        check_range("population", self.population, 2, MOST_SEEDS)
        if self.seeds > 1 or self.sweep or self.schedule:
            raise UserError(
                "--population has members and schedules of its own: leave out --seeds, "
                "--sweep and --schedule"
            )
        if not self.pbt.fields:
            raise UserError(
                "--population needs hyperparameters to adapt: name them and their ranges, "
                "--pbt.fields learning-rate=1e-5..1e-2"
            )

    @property
    def number_of_seeds(self) -> int:
        """How many runs there are side by side, each with a seed of its own."""
        return self.population or self.seeds

    @property
    def of_training(self) -> dict[str, Any]:
        """What `anakin.train` and `population.train` both take."""
        names = "batch_size", "unroll_length", "total_steps", "updates_per_report"
        return {x: getattr(self, x) for x in (*names, "cores", "reset_pool")}

    @property
    def together(self) -> bool:
        """Whether there are several runs."""
        return self.number_of_seeds > 1 or bool(self.sweep)


@dataclasses.dataclass(frozen=True)
class Plan(Train):
    """Compiles what `anakin train` would run with these flags for a TPU slice, without a
    TPU, and prints what the compiler says about it.
    """

    MAIN = ()
