"""Evaluation: statistics of the returns of whole episodes, with confidence intervals."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from podracer import parallel
from podracer.agent import Agent, LearnerState
from podracer.errors import MOST_PLAYED, check_at_least_one, check_range
from podracer.parallel import watch

CONFIDENCE = 0.95
RESAMPLES = 2000
MOST_DRAWN = 10**7  # values at once, which memory holds: fewer resamples of many values


class Evaluation(NamedTuple):
    """One entry per episode."""

    episode_return: np.ndarray  # [N] float32, undiscounted
    episode_length: np.ndarray  # [N] int32, environment steps
    finished: np.ndarray  # [N] bool, False where max_steps was reached first
    # [N] bool, whether it reached its goal; None where the environment does not say
    succeeded: np.ndarray | None = None


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


def iqm(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The interquartile mean: of the middle half (Agarwal et al. 2021, arXiv:2108.13264).

    A quarter of the values, rounded down, is left out at each end: none of fewer than four.
    """
    from scipy import stats  # slow to import

    return stats.trim_mean(values, 0.25, axis=axis)


def summary(evaluation: Evaluation) -> dict[str, float | None]:
    """Mean, median and interquartile mean of the returns, and the intervals of the two means.

    Their ends are None for a single episode, and where a return is not finite; `success_rate`
    is, where the environment does not say which episodes succeed.
    """
    returns = np.asarray(evaluation.episode_return, float)
    mean, middle = _ends(returns, np.mean), _ends(returns, iqm)
    succeeded = evaluation.succeeded
    return {
        "episodes": len(returns),
        "episode_return": float(returns.mean()),
        "low": mean[0],
        "high": mean[1],
        "median": float(np.median(returns)),
        "iqm": float(iqm(returns)),
        "iqm_low": middle[0],
        "iqm_high": middle[1],
        "episode_length": float(evaluation.episode_length.mean()),
        "unfinished": int((~evaluation.finished).sum()),
        "success_rate": None if succeeded is None else float(succeeded.mean()),
    }


def _ends(returns: np.ndarray, statistic: Callable) -> tuple[float | None, ...]:
    """Of the interval of a statistic of returns [N]."""
    if len(returns) < 2 or not np.isfinite(returns).all():
        return None, None
    return tuple(float(x[0]) for x in interval(returns[:, None], statistic))


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
