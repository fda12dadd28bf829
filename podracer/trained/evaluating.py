"""The command `evaluate`: checkpoints of a run, played in one or several settings."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from podracer import command, files
from podracer.checkpoints import finding, retention
from podracer.errors import UserError, check_play
from podracer.metrics import human, json_number
from podracer.runs import evaluation, run_folder
from podracer.trained import loading, playing
from podracer.trained.loading import Trained
from podracer.trained.settings import Setting, settings, split

NEWEST, BEST, ALL = "newest", "best", "all"
ENV = (
    "environments to play in, one or several; default: the run's, which must be named where "
    "its name brings code, unless --trust"
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Plays whole episodes with a trained agent and prints, for each checkpoint and setting,
    the mean return with its 95 % confidence interval, median and interquartile mean. The
    settings are the environment with the options that it was trained with; --env NAME ...
    names others, and --env.OPTION VALUE ... plays with each value of an option."""

    run: tyro.conf.Positional[Path | None] = None
    """folder of the run"""
    episodes: int = 100
    """number of whole episodes to play in each setting"""
    sampled: bool = False
    """act with exploration, as in training; default: greedily"""
    checkpoint: tuple[str, ...] = (NEWEST,)
    """checkpoints to play: their numbers of updates, or newest, best (by its training
    return) or all"""
    max_steps: int = 100_000
    """environment steps after which an episode is cut off"""
    seed: int = 0
    """random seed of environments and sampled actions, the same in each setting"""
    out: Path | None = None
    """file for the results, a JSON line each; default: evaluation.jsonl in the run's folder"""

    def __post_init__(self):
        check_play(self.episodes, self.max_steps, self.seed)
        if not self.checkpoint:
            raise UserError(f"checkpoint is empty; name some, or {NEWEST}")
        for x in self.checkpoint:
            is_number = x.isascii() and x.isdigit()
            if not is_number and x not in (NEWEST, BEST, ALL):
                raise UserError(
                    f"checkpoint is {x}; it must be a number of updates, {NEWEST}, {BEST} "
                    f"or {ALL}"
                )


class Player(NamedTuple):
    """What an architecture knows of evaluation."""

    program: str  # "anakin" or "sebulba"
    default: Config
    # (agent, setting, configuration) -> the episodes that it played
    play: Callable[[Trained, Setting, Any], evaluation.Evaluation]
    environments: command.Environments
    # (options of an environment) -> those in which it plays
    as_played: Callable[[Any], Any] = lambda options: options


def evaluate(argv: Sequence[str], player: Player) -> None:
    """Prints a line for each checkpoint and setting, and keeps the results as JSON lines."""
    rest, names, flags = split(argv)
    for name in names:
        player.environments.choose(name)
    config, stored = playing.chosen(
        rest,
        player.program,
        "evaluate",
        player.default,
        player.environments,
        names,
        ENV,
    )
    checkpoints = _checkpoints(config)
    # First: it says what is damaged, and what else its folder lacks.
    agent = loading.restore(config.run, checkpoints[0], trust=True)
    options = player.environments.default_options
    plan = settings(stored, names, flags, options, player.as_played)
    out = config.out or config.run / run_folder.EVALUATION
    kept: list[str] = []
    for updates in checkpoints:
        if updates != checkpoints[0]:
            agent = loading.at(agent, updates)
        for setting in plan:
            played = player.play(agent, setting, config)
            means = evaluation.summary(played)
            line = f"{setting}: {described(means, config, agent.updates)}"
            result = _result(played, means, setting, agent, config)
            kept.append(json.dumps(result, default=run_folder.plain))
            # Once more for each, so that a run that is killed has what it printed.
            try:
                with files.writing(out), files.atomic(out) as temporary:
                    temporary.write_text("\n".join([*kept, ""]))
            except UserError as error:
                raise UserError(f"{line}; {error}") from error
            print(line, flush=True)


def _checkpoints(config: Config) -> list[int | None]:
    """Numbers of updates, each once, in the order in which they are asked for."""
    folder = config.run / run_folder.CHECKPOINTS
    found: list[int | None] = []
    for x in config.checkpoint:
        if x == NEWEST:
            found.append(None if len(config.checkpoint) == 1 else _whole(folder)[0])
        elif x == BEST:
            found.append(retention.best(folder, _whole(folder)))
        elif x == ALL:
            found += reversed(_whole(folder))
        else:
            found.append(int(x))
    return [*dict.fromkeys(found)]


def _whole(folder: Path) -> list[int]:
    """The whole checkpoints, newest first. Raises UserError if there is none."""
    return [*finding.find_whole(folder)] or [finding.choose_to_read(folder, None)]


def described(means: dict[str, Any], config: Config, updates: int) -> str:
    """A summary in one line."""
    line = f"mean return {_with_ends(means, 'episode_return', 'low', 'high')}"
    line += f", median {human(means['median'])}"
    line += f", IQM {_with_ends(means, 'iqm', 'iqm_low', 'iqm_high')}"
    line += (
        f" over {means['episodes']} episodes of {human(means['episode_length'])} steps, "
        f"{'sampled' if config.sampled else 'greedy'}, after {updates} updates"
    )
    if means["success_rate"] is not None:
        line += f"; {means['success_rate']:.1%} succeeded"
    if means["unfinished"]:
        line += f"; {means['unfinished']} unfinished after {config.max_steps} steps"
    return line


def _with_ends(means: dict[str, Any], name: str, low: str, high: str) -> str:
    if means[low] is None:
        return human(means[name])
    return f"{human(means[name])} ({human(means[low])} to {human(means[high])}, 95 %)"


def _result(
    played: evaluation.Evaluation,
    means: dict[str, Any],
    setting: Setting,
    agent: Trained,
    config: Config,
) -> dict[str, Any]:
    """What evaluation.jsonl keeps: what was asked for, the statistics, and each episode."""
    asked = dataclasses.asdict(config)
    asked = {x: asked[x] for x in asked.keys() - {"run", "checkpoint", "out"}}
    succeeded = played.succeeded
    return {
        "agent": agent.run.agent,
        "env": setting.env,
        "options": setting.options,
        "differs": setting.differs,
        "checkpoint": agent.updates,
        **dict(sorted(asked.items())),
        **{name: json_number(x) for name, x in means.items()},
        "returns": [json_number(float(x)) for x in played.episode_return],
        "lengths": played.episode_length.tolist(),
        "finished": played.finished.tolist(),
        "succeeded": None if succeeded is None else succeeded.tolist(),
    }
