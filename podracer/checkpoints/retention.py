"""Which checkpoints a run keeps: the newest ones, and the one with the best return."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from podracer import files

RETURN = "episode_return"


class Retention:
    """An Orbax preservation policy: the newest `keep` and the best one.

    The returns are read here, because Orbax fails where one of them is damaged.

    Args:
      folder: of the checkpoints.
      keep: number of newest checkpoints.
    """

    def __init__(self, folder: Path, keep: int):
        self._folder, self._keep = folder, keep

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> list[bool]:
        """Orbax's question, of all checkpoints; `context` plays no part."""
        returns = {x.step: self._return(x) for x in checkpoints}
        best = sorted(returns, key=lambda step: (returns[step], step))[-1:]
        newest = sorted(returns)[-self._keep :]
        return [x.step in (*best, *newest) for x in checkpoints]

    def _return(self, checkpoint: Any) -> float:
        if checkpoint.metrics is not None:  # saved by this process
            return best_by(checkpoint.metrics)
        return _saved_return(self._folder, checkpoint.step)


def best(folder: Path, checkpoints: Sequence[int]) -> int:
    """The checkpoint [updates] with the best return; of equal ones the newest."""
    return max(checkpoints, key=lambda step: (_saved_return(folder, step), step))


def _saved_return(folder: Path, step: int) -> float:
    """What a checkpoint on disk is chosen by; -inf where that cannot be read."""
    path = folder / str(step) / "metrics" / "metrics"
    try:
        return best_by(json.loads(files.read(path)))
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return -math.inf


def best_by(metrics: Mapping[str, float | None]) -> float:
    """What the best checkpoint has most of; -inf where no episode had finished."""
    x = metrics[RETURN]
    return -math.inf if x is None or math.isnan(x) else float(x)
