"""The command `anakin meta-train`: learns an update rule, and writes its file."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from anakin import meta_gradient
from anakin.command.memory import of_meta_train
from anakin.meta import lpg
from anakin.meta import objective as objectives
from envs_jax.lpg import FAMILIES, TaskDistribution
from podracer import command, parallel
from podracer.agents.lpg import KIND
from podracer.errors import UserError, check_at_least_one, check_seed
from podracer.parallel import cpu, hosts
from podracer.rules import files
from podracer.rules import lpg as lpg_rule
from podracer.runs import run, run_folder
from podracer.training import configuring, memory

PRESET = "the scale to start from; other flags win over it"
ABOUT = {"agent": KIND, "env": "lpg-tasks"}  # what a run folder says
# Of the defaults, which are for a laptop.
RULE = lpg_rule.Sizes(prediction_size=8, memory_size=32, embedding_size=8)
META = meta_gradient.Config(lifetimes=32, learning_rate=1e-3)
LIFE = lpg.Config(batch_size=16, length=120)


@dataclasses.dataclass(frozen=True)
class MetaTrain:
    """Learns an update rule by the gradient through its agents' updates: one program on all
    cores.

    Leaves a run folder with rule.safetensors, for --update-rule, and what `anakin train`
    leaves.
    """

    families: tuple[str, ...] = ("grid-tabular-dense", "chain-short")
    """kinds of tasks, of which each lifetime draws one"""
    collect: Literal["never", "always", "both"] = "never"
    """whether grids have the 18 actions with which moving does not collect; both: each
    lifetime draws one of the two sets"""
    rule: lpg_rule.Sizes = RULE
    meta: command.Flat[meta_gradient.Config] = META
    life: lpg.Config = LIFE
    objective: objectives.Config = dataclasses.field(default_factory=objectives.Config)
    total_steps: int = 81_000_000
    """number of environment steps of all lifetimes together"""
    seed: int = 0
    """random seed; equal seeds give identical runs"""
    cores: int | None = None
    """number of cores to use; default: all (on a CPU the most that share the lifetimes
    equally)"""
    updates_per_report: int | None = None
    """number of updates of the rule between two reports; default: a hundredth of the run"""
    keep: command.Flat[run.Options] = dataclasses.field(default_factory=run.Options)

    def __post_init__(self):
        check_at_least_one(
            total_steps=self.total_steps,
            updates_per_report=self.updates_per_report,
        )
        check_seed(self.seed)
        if self.keep.evaluate.steps is not None:
            raise UserError(
                "evaluate.steps is for agents; a rule is evaluated by training an agent "
                "with it: anakin train --agent lpg --update-rule FILE"
            )
        unknown = [x for x in self.families if x not in FAMILIES]
        if unknown or not self.families:
            raise UserError(
                f"families are {', '.join(self.families) or 'none'}; known: "
                f"{', '.join(FAMILIES)}"
            )


PRESETS = {
    # ours, the defaults: ten minutes of a CPU (docs/results/meta-cpu.md)
    "small": MetaTrain(),
    # of arXiv:2007.08794 and 2104.06272: 24 GiB, for TPUs or a large GPU
    "paper": MetaTrain(
        families=("grid-tabular-dense",),
        collect="both",
        rule=lpg_rule.Sizes(),
        meta=meta_gradient.Config(),
        life=lpg.Config(),
        total_steps=1_000_000_000,
    ),
}


def main(argv: Sequence[str]) -> None:
    """Learn an update rule on many tasks; leaves a run folder with the rule's file."""
    hosts.initialize()
    if hosts.number_of() > 1:
        raise UserError("meta-train is for one process: use the cores of one host")
    command.keep_programs()
    config = configure(argv)
    share = cpu.cpu_cores(config.meta.lifetimes)
    parallel.use_cpu_cores(share if config.cores is None else config.cores)
    train = partial(
        meta_gradient.train,
        made(config),
        config.meta,
        total_steps=config.total_steps,
        seed=config.seed,
        updates_per_report=config.updates_per_report,
        cores=config.cores,
    )

    def start(restore: Callable | None, stopped: Callable[[], bool]) -> Any:
        return train(restore=restore and writing(restore, config), stopped=stopped)

    with (
        memory.naming(config, needed),
        run.open_run(start, config, None, **ABOUT) as (folder, updates),
        contextlib.closing(updates),
    ):
        for state, _ in updates:
            write(folder / run_folder.RULE, config, state)
    if not config.keep.quiet:
        print(f"rule in {folder / run_folder.RULE}")


def made(config: MetaTrain) -> meta_gradient.Meta:
    """What is learned, and from what."""
    tasks = TaskDistribution(config.families, config.collect)
    return lpg.make_meta(config.life, tasks, config.rule, config.objective)


def needed(config: MetaTrain) -> int:
    """Bytes of a run's programs."""
    return of_meta_train(made(config), config.meta, config.cores)


def writing(restore: Callable, config: MetaTrain) -> Callable:
    """`restore`, which writes the rule too: there may be no update left that does."""

    def restored(state: meta_gradient.State, layout: Any) -> meta_gradient.State:
        state = restore(state, layout)
        write(config.keep.resume / run_folder.RULE, config, state)
        return state

    return restored


def write(path: Path, config: MetaTrain, state: meta_gradient.State) -> None:
    """Writes the rule's file."""
    about = {
        "families": list(config.families),
        "updates": int(parallel.on_host(state.updates)),
        "seed": config.seed,
    }
    files.save_rule(path, KIND, config.rule, parallel.on_host(state.weights), about)


def configure(argv: Sequence[str]) -> MetaTrain:
    """Reads the command line.

    Raises UserError for bad flags, and for a run to resume that is not there, is no run of
    `anakin meta-train` or has another configuration.
    """
    read_first = command.read(argv, {"resume": (), "preset": PRESETS})
    folder, name = read_first["resume"], read_first["preset"]
    preset = command.make_choice("preset", name or "small", PRESETS, PRESET)
    default = PRESETS[preset.name]
    if folder is not None:
        if name is not None:
            raise UserError(
                f"--preset is {name}, but {folder} is a run with its own hyperparameters: "
                "leave the flag out, or start another run"
            )
        before = run.read_run(folder)
        if not before.is_of_meta_train:
            raise UserError(
                f"{folder}: a run of {before.agent} on {before.env}, not of meta-train: "
                f"say {before.program} train --resume instead"
            )
        default = command.filled(default, before.config)
        default = configuring.resumed(default, before)
    config = command.parse(default, argv, "anakin meta-train", [preset])
    configuring.refuse_changes(default, config)
    return config
