"""The grid worlds in the tables of LPG: maps, objects, time limits (arXiv:2007.08794)."""

from typing import NamedTuple

import numpy as np


class Objects(NamedTuple):
    """Objects of one type."""

    count: int
    reward: float  # for collecting one of them
    terminates: float  # the probability that collecting one ends the episode
    returns: float  # the probability, at each step, that a missing one reappears


class Task(NamedTuple):
    """A row of the paper's tables."""

    rows: tuple[str, ...]  # the map: "#" is a wall; there are walls around it
    objects: tuple[Objects, ...]
    time_limit: int  # steps
    fixed: bool  # whether the objects keep their cells (tabular tasks)


SMALL = (  # 5 x 7
    ".......",
    "..#....",
    ".......",
    "....#..",
    ".......",
)
CENTRE_WALL = (  # 7 x 9
    "....#....",
    ".........",
    "....#....",
    "...###...",
    "....#....",
    ".........",
    "....#....",
)
FOUR_ROOMS = (  # Sutton, Precup and Singh (1999)
    ".....#.....",
    ".....#.....",
    "...........",
    ".....#.....",
    ".....#.....",
    "#.####.....",
    ".....###.##",
    ".....#.....",
    ".....#.....",
    "...........",
    ".....#.....",
)


def _square(side: int) -> tuple[str, ...]:
    return ("." * side,) * side


DENSE = Objects(2, 1, 0, 0.05), Objects(1, -1, 0.5, 0.1), Objects(1, -1, 0, 0.5)
LONG = Objects(2, 1, 0, 0.01), Objects(2, -1, 0.5, 1)

TASKS = {
    "tabular-dense": Task(_square(11), DENSE, 500, True),
    "tabular-sparse": Task(
        _square(13), (Objects(1, 1, 1, 0), Objects(1, -1, 1, 0)), 50, True
    ),
    "tabular-long": Task(_square(11), LONG, 1_000, True),
    "tabular-longer": Task(
        CENTRE_WALL, (Objects(2, 1, 0.1, 0.01), Objects(5, -1, 0.8, 1)), 2_000, True
    ),
    "tabular-long-dense": Task(FOUR_ROOMS, (Objects(4, 1, 0, 0.005),), 2_000, True),
    "random-dense": Task(_square(11), DENSE, 500, False),
    "random-long": Task(_square(11), LONG, 1_000, False),
    "random-small": Task(
        SMALL, (Objects(2, 1, 0, 0.05), Objects(2, -1, 0.5, 0.1)), 500, False
    ),
    "random-small-sparse": Task(
        SMALL, (Objects(1, 1, 1, 1), Objects(2, -1, 1, 1)), 50, False
    ),
    "random-very-dense": Task(_square(11), (Objects(1, 1, 0, 1),), 2_000, False),
}


def each(task: Task) -> np.ndarray:
    """float32 [4, M], for each of the M objects: type, reward, terminates, returns."""
    table = [(kind, *objects[1:]) for kind, objects in enumerate(task.objects)]
    counts = [objects.count for objects in task.objects]
    return np.repeat(np.float32(table), counts, axis=0).T
