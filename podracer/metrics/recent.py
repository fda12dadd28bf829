"""The mean return that a run prints, and that its curve is labelled with."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

EPISODES = 100  # at least: a row may hold only a few


class Recent:
    """The newest rows of a run that hold `EPISODES` episodes together."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
        self._rows: deque[tuple[float, float]] = deque()  # episodes, their mean return
        self._episodes = 0.0
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes a row of metrics; drops those that are no longer needed."""
        if not row.get("episodes") or row.get("episode_return") is None:
            return
        self._rows.append((row["episodes"], row["episode_return"]))
        self._episodes += row["episodes"]
        while self._episodes - self._rows[0][0] >= EPISODES:
            self._episodes -= self._rows.popleft()[0]

    def mean_return(self) -> float:
        """Of the last `EPISODES` episodes, or a few more; NaN where none has finished."""
        if not self._rows:
            return math.nan
        return sum(n * x for n, x in self._rows) / self._episodes

    def has_reached(self, mean_return: float) -> bool:
        """Whether the last `EPISODES` episodes have this mean return or a larger one."""
        return self._episodes >= EPISODES and self.mean_return() >= mean_return

    def __len__(self) -> int:
        return len(self._rows)
