"""What `anakin tune` and `sebulba tune` have in common: flags, folder, table at the end."""

import contextlib
import dataclasses
import inspect
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from podracer import files
from podracer.errors import UserError, check_at_least_one, check_range, nearest
from podracer.parallel import hosts
from podracer.runs import in_turn, run, run_folder
from podracer.tune import study
from podracer.tune.space import make_space

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Search:
    """What is searched, and how. Its fields are flags."""

    fields: tuple[str, ...] = ()
    """hyperparameters of the agent: learning_rate=1e-5..1e-2 (on a logarithmic scale if HIGH
    is ten times LOW), epochs=1..8, clip=0.1,0.2, normalize_advantages=trajectory,none"""
    trials: int = 20
    """number of runs, with those of a study that is resumed"""
    sampler: str = "TPESampler"
    """class of optuna.samplers, made with the seed and Optuna's defaults"""
    pruner: str = "MedianPruner"
    """class of optuna.pruners, made with Optuna's defaults; NopPruner ends no run early"""

    def __post_init__(self):
        check_range("trials", self.trials, 1, study.MOST)


@dataclasses.dataclass(frozen=True)
class TogetherSearch(Search):
    """The same where several trials can be one program."""

    together: int = 1
    """number of trials side by side in one program, where only floats are searched; trials are rounded up to whole programs"""

    def __post_init__(self):
        super().__post_init__()
        check_at_least_one(together=self.together)


def prepare(config: Any) -> dict[str, Any]:
    """The search space of a command's config, before anything is compiled.

    Raises UserError for what cannot be searched, for flags of `train` that a study has no
    use for, and on several hosts.
    """
    if config.keep.is_for_one_run or config.keep.overwrite:
        raise UserError(
            "--evaluate.steps, --stop-at, --profile and --overwrite are for one run: leave "
            "them out, or say train"
        )
    several = config.number_of_seeds > 1 or getattr(config, "together", False)
    if several or getattr(config, "schedule", ()):
        raise UserError(
            "--seeds, --sweep, --population and --schedule are for train: leave them out, "
            "and train the best with them"
        )
    if hosts.number_of() > 1:
        raise UserError("tune is for one process: use the cores of one host")
    study.check_installed()
    _made("sampler", config.tune.sampler)
    _made("pruner", config.tune.pruner)
    return make_space(config.agent, config.tune.fields)


def search(
    train: study.Train,
    config: Any,
    kind: type[Config],
    program: str,
    about: Mapping[str, Any],
    together: int = 1,
) -> None:
    """Trains trial after trial; prints the best ones and how to train the best.

    Args:
      train: as for `study.tune_together`, with trials whose config is of `kind`.
      config: the command's.
      kind: the configuration of one run.
      program: "anakin" or "sebulba".
      about: what a run folder says of its agent and environment.
      together: number of trials in a program.
    """
    options, base = config.keep, _folder(config, about)
    quiet, say = options.quiet, (lambda line: None) if options.quiet else print
    run_folder.rewrite_config(base, {**about, "train": config}, run_folder.TOGETHER)
    say(f"{about['agent']} on {about['env']}: trials recorded in {base}")

    def train_agents(trials, report):
        whole = [x._replace(config=of_run(config, kind, x.config)) for x in trials]
        train(whole, report)

    searched = study.tune_together(
        train_agents,
        config.agent,
        config.tune.fields,
        folder=base,
        trials=config.tune.trials,
        together=together,
        sampler=_made("sampler", config.tune.sampler, config.seed),
        pruner=_made("pruner", config.tune.pruner),
        say=say,
    )
    if not quiet:
        print("\n".join(study.table(searched)))
        print("\n".join(next_commands(searched, base, program, about)))


def of_run(config: Any, kind: type[Config], agent: Any) -> Config:
    """The configuration of a trial's run, with this agent: one like any other's."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(kind)}
    return kind(**fields | {"agent": agent})


def rows(
    opened: Callable[[Any], contextlib.AbstractContextManager], trial: study.Trial
) -> Iterator[dict[str, float] | None]:
    """The rows of a trial's run, which starts, or resumes where a process has left it.

    Args:
      opened: (config) -> what `run.open_run` gives.
      trial: to train.
    """
    if failure := in_turn.failure(trial.folder):
        raise FloatingPointError(failure)
    how = in_turn.remaining(trial.folder, trial.config)
    if not how:
        return
    keep = dataclasses.replace(trial.config.keep, **how)
    with opened(dataclasses.replace(trial.config, keep=keep)) as (_, updates):
        for _, row in updates:
            yield row


def next_commands(
    searched: Any, base: Path, program: str, about: Mapping[str, Any]
) -> Iterator[str]:
    """Lines on what to do with the result."""
    with contextlib.suppress(ValueError):  # no trial is complete
        folder = base / study.name_of(searched.best_trial)
        names = {x: about[x] for x in run.NAMED if about.get(x)}
        flags = [word for name, x in names.items() for word in (f"--{name}", x)]
        config = "--config", str(folder / run_folder.CONFIG)
        yield "train the best: " + shlex.join([program, "train", *flags, *config])
    yield f"all trials: optuna-dashboard {shlex.quote(str(base / study.LOG))}"


def _folder(config: Any, about: Mapping[str, Any]) -> Path:
    """The folder of the study, which is empty unless it is resumed."""
    options = config.keep
    if options.resume:
        return options.resume.absolute()
    base = options.run
    if base is None:
        run_folder.check_startable(None, False)
        return run_folder.fresh(f"tune-{run.name_of(dict(about))}")
    with files.writing(base):
        if os.path.isdir(base) and any(base.iterdir()):
            raise UserError(
                f"{base}: is not empty; continue the study in it with --resume {base}, or "
                "choose another folder"
            )
        run_folder.check_startable(base, False)
        base.mkdir(parents=True, exist_ok=True)
    return base.absolute()


def _made(kind: str, name: str, seed: int = 0) -> Any:
    """A sampler or pruner of Optuna's by the name of its class. Raises UserError."""
    module = getattr(study.optuna, f"{kind}s")
    names = [
        x for x in dir(module) if x.endswith(kind.capitalize()) and x[:4] != "Base"
    ]
    if name not in names:
        raise UserError(
            f"tune.{kind} is {name}; unknown to Optuna{nearest(name, names)}"
        )
    made = getattr(module, name)
    seeded = "seed" in inspect.signature(made).parameters
    try:
        return made(**({"seed": seed} if seeded else {}))
    except (TypeError, ImportError) as error:
        raise UserError(
            f"tune.{kind} is {name}, which needs more than Optuna's defaults ({error}): "
            "choose another, or use podracer.tune in a script"
        ) from error
