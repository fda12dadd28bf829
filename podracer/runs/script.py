"""Runs of a script or notebook: what the commands record, for any training loop."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podracer.agent import Agent
from podracer.checkpoints import finding
from podracer.checkpoints.checkpoint import Config as CheckpointConfig
from podracer.errors import UserError
from podracer.parallel import hosts
from podracer.runs import evaluation, recording, run_folder, sinks
from podracer.runs.run import Options, encode_specs, open_run, read_run

FREE = ("cores", "total_steps")  # what a resumed run may change
PLAIN = (bool, int, float, str, type(None))  # options that config.json keeps


@dataclasses.dataclass(frozen=True)
class Config:
    """What `config.json` keeps of a run of a script."""

    script: str
    total_steps: int
    seed: int
    options: dict[str, Any]  # of the training loop
    keep: Options


def record(
    train: Callable[..., recording.Updates],
    agent: Agent,
    environment: Any,
    *,
    total_steps: int,
    seed: int = 0,
    run: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    allow_changes: bool = False,
    checkpoint_minutes: float = 10.0,
    checkpoint_steps: int | None = None,
    checkpoint_keep: int = 3,
    evaluate: Callable[..., evaluation.Evaluation] | None = None,
    evaluate_steps: int | None = None,
    evaluate_episodes: int = 32,
    tensorboard: bool = False,
    wandb: str | None = None,
    quiet: bool = False,
    agent_name: str | None = None,
    env_name: str | None = None,
    **options: Any,
) -> recording.Updates:
    """`train(agent, environment, ...)`, recorded as `anakin train` records a run.

    A generator of what `train` yields. It keeps a run folder with the configuration,
    metrics, curve and checkpoints, and shows the progress. SIGTERM, Ctrl-C and a closed
    terminal write a checkpoint before the loop ends, and so does a `break`. `podracer.load(run,
    agent=agent)` acts with the result; `podracer runs` and `podracer plot` know it.

    In a thread that is not the main one (agents of Weights & Biases, Optuna, servers) signals
    are the program's own, since Python gives them to the main thread alone: Ctrl-C and
    SIGTERM write no checkpoint there. End the loop with a `break`, or wait for the thread.

    Args:
      train: `anakin.train` or `sebulba.train`.
      agent: any agent.
      environment: what `train` takes: an environment, or what makes them.
      total_steps: environment steps of the run.
      seed: of the run, as for `train`.
      run: its folder; default: a new one under runs/.
      resume: continue the run in that folder from its newest checkpoint, if it has one,
        so that the same script starts a run and continues it.
      overwrite: remove a run that is in the folder.
      allow_changes: resume although options of `train` differ.
      checkpoint_minutes: between two checkpoints; one more is written at the end.
      checkpoint_steps: environment steps between two, in addition.
      checkpoint_keep: number of newest checkpoints to keep, besides the best one.
      evaluate: (agent, actor parameters, environment, episodes=N) -> Evaluation, as
        `anakin.evaluate`.
      evaluate_steps: environment steps between two evaluations; default: none.
      evaluate_episodes: number of episodes in each.
      tensorboard: write the metrics for TensorBoard too.
      wandb: project of Weights & Biases that is sent the metrics too.
      quiet: print nothing but errors.
      agent_name: for lists and plots; default: the module of the agent.
      env_name: likewise; default: the class of the environment inside its wrappers.
      **options: of `train`: batch_size, unroll_length, ...

    Raises:
      UserError: the folder holds a run and neither `resume` nor `overwrite` is set, it
        was configured otherwise, or the disk refuses.
    """
    if evaluate_steps is not None and evaluate is None:
        raise UserError(
            "evaluate_steps is set but evaluate is not: give evaluate=anakin.evaluate"
        )
    if resume and run is None:
        raise UserError("resume is set but run is not: name the folder of the run")
    keep = dataclasses.replace(
        _where(run, resume, overwrite),
        checkpoint=CheckpointConfig(
            checkpoint_minutes, checkpoint_steps, checkpoint_keep
        ),
        evaluate=evaluation.Schedule(evaluate_steps, evaluate_episodes),
        sinks=sinks.Config(tensorboard, wandb),
        quiet=quiet,
    )
    plain = {name: _plain(value) for name, value in options.items()}
    plain = {name: value for name, value in plain.items() if isinstance(value, PLAIN)}
    config = Config(_script(), _plain(total_steps), _plain(seed), plain, keep)
    if keep.resume is not None and not allow_changes:
        _refuse_changes(keep.resume, config)
    specs: dict[str, Any] = {}

    def start(**of_run: Any) -> recording.Updates:
        noted = _noting_specs(environment, specs)
        fixed = {"total_steps": total_steps, "seed": seed} | options
        return train(agent, noted, **fixed, **of_run)

    def play(state: Any, episodes: int) -> evaluation.Evaluation:
        params = evaluation.acting_params(agent, state.learner, jax.local_devices()[0])
        return evaluate(agent, params, environment, episodes=episodes)

    names = {
        "agent": agent_name or _module(agent),
        "env": env_name or _environment_name(environment),
    }
    return _updates(start, config, play, **names, specs=specs)


def _updates(*arguments: Any, **about: Any) -> recording.Updates:
    with open_run(*arguments, **about) as (_, updates):
        yield from updates


def _where(folder: str | Path | None, resume: bool, overwrite: bool) -> Options:
    """Whether a run starts in the folder or, where it has a checkpoint, continues there."""
    if not resume:
        return Options(run=folder and Path(folder), overwrite=overwrite)
    folder = Path(folder)
    checkpoints = folder / run_folder.CHECKPOINTS
    if hosts.lead(lambda: bool(finding.find_checkpoints(checkpoints))):
        return Options(resume=folder)
    # A run of this script that was killed before its first checkpoint starts again.
    is_begun = hosts.lead(lambda: _is_begun(folder))
    return Options(run=folder, overwrite=overwrite or is_begun)


def _is_begun(folder: Path) -> bool:
    """Whether this script has begun a run there, and not finished it."""
    if not (folder / run_folder.CONFIG).exists():
        return False
    train = run_folder.load_config(folder)["config"].get("train", {})
    finished = run_folder.load_state(folder).get("state") == "finished"
    return train.get("script") == _script() and not finished


def _script() -> str:
    return Path(sys.argv[0]).name or "notebook"


def _plain(value: Any) -> Any:
    """A value of NumPy's as Python's, which JSON has: a seed may come from np.arange."""
    return value.item() if isinstance(value, np.generic) else value


def _refuse_changes(folder: Path, config: Config) -> None:
    """Raises UserError where the script gives `train` other options than before."""
    before = read_run(folder).config
    if not isinstance(before.get("options"), dict):
        raise UserError(
            f"{folder}: was not recorded by a script; resume it with --resume {folder}"
        )
    old = {"seed": before.get("seed"), **before["options"]}
    new = {"seed": config.seed, **config.options}
    changed = [
        f"{name}: {old.get(name)} -> {new.get(name)}"
        for name in {**old, **new}
        if name not in FREE and old.get(name) != new.get(name)
    ]
    if changed:
        raise UserError(
            f"{folder}: its configuration differs: {'; '.join(changed)}; change them "
            "back, or set allow_changes"
        )


def _noting_specs(environment: Any, specs: dict[str, Any]) -> Any:
    """The environment; what the agent sees of it, or of the first one made, is noted."""

    def note(one: Any) -> Any:
        if not specs:
            specs.update(encode_specs(one.observation_spec(), one.action_spec()))
        return one

    if hasattr(environment, "observation_spec") and not isinstance(environment, type):
        return note(environment)
    return lambda number: note(environment(number))


def _module(agent: Agent) -> str:
    module = getattr(agent.learner_step, "__module__", "agent")
    name = module.removesuffix(".agent").rpartition(".")[2]  # of the file or its room
    return "agent" if name.startswith("__") else name


def _environment_name(environment: Any) -> str:
    # Of what a wrapper such as envs_jax.TimeLimit is around.
    while hasattr(inner := getattr(environment, "environment", None), "action_spec"):
        environment = inner
    name = getattr(environment, "__name__", type(environment).__name__).lower()
    return name if name.isidentifier() else "environment"
