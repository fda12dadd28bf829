"""Evaluation: the mean return over whole episodes, and its confidence interval."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro

from podracer import files, parallel
from podracer.agent import Agent, LearnerState
from podracer.errors import (
    MOST_PLAYED,
    UserError,
    check_at_least_one,
    check_play,
    check_range,
)
from podracer.metrics import human, json_number
from podracer.parallel import watch
from podracer.runs import run_folder

CONFIDENCE = 0.95
RESAMPLES = 2000
MOST_DRAWN = 10**7  # values at once, which memory holds: fewer resamples of many values


class Evaluation(NamedTuple):
    """One entry per episode."""

    episode_return: np.ndarray  # [N] float32, undiscounted
    episode_length: np.ndarray  # [N] int32, environment steps
    finished: np.ndarray  # [N] bool, False where max_steps was reached first


@dataclasses.dataclass(frozen=True)
class Config:
    """Plays episodes with a trained agent, prints their mean return and its 95 %
    confidence interval, and writes both to evaluation.json in the run's folder."""

    run: tyro.conf.Positional[Path | None] = None
    """folder of the run"""
    episodes: int = 100
    """number of whole episodes to play"""
    sampled: bool = False
    """act with exploration, as in training; default: greedily"""
    checkpoint: int | None = None
    """number of updates of the checkpoint to play; default: the newest"""
    max_steps: int = 100_000
    """environment steps after which an episode is cut off"""
    seed: int = 0
    """random seed of environments and sampled actions"""

    def __post_init__(self):
        check_play(self.episodes, self.max_steps, self.seed)


def interval(
    values: np.ndarray, statistic: Callable = np.mean
) -> tuple[np.ndarray, np.ndarray]:
    """Low and high end [N] of the 95 % confidence interval of the mean of [runs, N].

    `statistic(values, axis=0)` is another one than the mean.

    A percentile bootstrap over runs, or over episodes (Efron & Tibshirani 1993).
    """
    from scipy import stats  # slow to import

    low, high = stats.bootstrap(
        (values,),
        statistic,
        axis=0,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),  # equal runs give equal intervals
        batch=max(1, min(100, MOST_DRAWN // values.size)),
    ).confidence_interval
    return low, high


def summary(evaluation: Evaluation) -> dict[str, float | None]:
    """Means over the episodes, and the interval of the mean return.

    Its ends are None for a single episode, and where a return is not finite.
    """
    returns = np.asarray(evaluation.episode_return, float)
    low, high = (None, None)
    if len(returns) > 1 and np.isfinite(returns).all():
        low, high = (float(x[0]) for x in interval(returns[:, None]))
    return {
        "episodes": len(returns),
        "episode_return": float(returns.mean()),
        "low": low,
        "high": high,
        "episode_length": float(evaluation.episode_length.mean()),
        "unfinished": int((~evaluation.finished).sum()),
    }


def write(evaluation: Evaluation, config: Config, updates: int) -> str:
    """Writes evaluation.json; returns a line that summarizes it.

    Raises UserError, which starts with that line, where it cannot write.
    """
    means = summary(evaluation)
    line = _line(means, config, updates)
    contents = {name: json_number(x) for name, x in means.items()} | {
        "asked": dataclasses.asdict(config)
        | {"run": str(config.run), "checkpoint": updates},
        "returns": [json_number(float(x)) for x in evaluation.episode_return],
    }
    try:
        with (
            files.writing(config.run),
            files.atomic(config.run / run_folder.EVALUATION) as temporary,
        ):
            temporary.write_text(json.dumps(contents, indent=1))
    except UserError as error:
        raise UserError(f"{line}; {error}") from error
    return line


def _line(means: dict[str, Any], config: Config, updates: int) -> str:
    line = f"mean return {human(means['episode_return'])}"
    if means["low"] is not None:
        line += f" ({human(means['low'])} to {human(means['high'])}, 95 %)"
    line += (
        f" over {means['episodes']} episodes of {human(means['episode_length'])} steps, "
        f"{'sampled' if config.sampled else 'greedy'}, after {updates} updates"
    )
    if means["unfinished"]:
        line += f"; {means['unfinished']} unfinished after {config.max_steps} steps"
    return line


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Evaluation during training, in separate environments."""

    steps: int | None = None
    """environment steps between two evaluations; default: no evaluation"""
    episodes: int = 32
    """number of whole episodes in each, played without exploration"""

    def __post_init__(self):
        check_at_least_one(**{"evaluate.steps": self.steps})
        check_range("episodes", self.episodes, 1, MOST_PLAYED)


def acting_params(agent: Agent, learner: LearnerState, device: jax.Device) -> Any:
    """The actor parameters of a learner, on one device: one host can play alone."""
    shared = parallel.on_device(learner.shared, device)
    return agent.actor_params(LearnerState(shared, learner.local))


class Evaluator:
    """Adds an evaluation to the rows of a run where one is due.

    Args:
      config: when, and how many episodes.
      play: (state, episodes) -> Evaluation.
      steps: environment steps done before the first row.
    """

    def __init__(
        self, config: Schedule, play: Callable[[Any, int], Evaluation], steps: int
    ):
        self._config, self._play, self._steps = config, play, steps

    def __call__(self, state: Any, row: dict[str, float]) -> dict[str, float]:
        """The row with the metrics evaluation_* of `metrics.VOCABULARY`."""
        every = self._config.steps
        if every is None:
            return row
        due = row["steps"] // every > self._steps // every
        self._steps = row["steps"]
        means: dict[str, float | None] = {"episodes": 0}
        if due:
            with watch.evaluating():
                means = summary(self._play(state, self._config.episodes))
        mean, low, high = map(means.get, ("episode_return", "low", "high"))
        return row | {
            "evaluation_episodes": means["episodes"],
            "evaluation_return": math.nan if mean is None else mean,
            "evaluation_low": math.nan if low is None else low,
            "evaluation_high": math.nan if high is None else high,
        }
