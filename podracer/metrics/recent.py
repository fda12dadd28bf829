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

    def episodes(self) -> int:
        """The number of episodes whose mean return that is."""
        return int(self._episodes)

    def __len__(self) -> int:
        return len(self._rows)


class NewestHalf:
    """The rows of the newest half of a run so far: whether episodes still end there.

    Where only some episodes end, or none any more, the mean return says nothing of the others.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
        self._rows: deque[tuple[float, float, float]] = deque()
        self._begins = self._steps = (
            0.0  # environment steps before the rows, and with them
        )
        self._episodes = self._finished = 0.0  # and the steps of these episodes
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes a row of metrics; drops those that are no longer in the newest half."""
        steps, share = row.get("steps", self._steps), row.get("finished_share")
        finished = (1.0 if share is None else share) * (steps - self._steps)
        self._steps = steps
        self._rows.append((steps, row.get("episodes") or 0.0, finished))
        self._episodes += self._rows[-1][1]
        self._finished += finished
        while self._rows and self._rows[0][0] <= steps / 2:
            self._begins, episodes, finished = self._rows.popleft()
            self._episodes -= episodes
            self._finished -= finished

    def has_episodes(self) -> bool:
        """Whether any episode ended."""
        return self._episodes > 0

    def few_end(self) -> bool:
        """Whether less than half of the steps are those of episodes that ended.

        Of episodes of equal length it is two thirds, at least.
        """
        return self._finished < (self._steps - self._begins) / 2
