"""The picture of a population: its members, and the lineage of the best one's learner."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from podracer.runs import lineage, plot
from podracer.runs.lineage import History, Stay
from podracer.runs.listing import to_points

INCHES = 3.4, 1.9  # heights of the panel of returns, and of one of a hyperparameter
MOST_MOVES = 40  # of a lineage that are named: more would be a wall
GREY, COLOR = "#8c8c8c", plot.COLORS[0]

Curve = Callable[[Sequence[Stay]], np.ndarray]  # of a learner where it was: [N, 2]


def population(history: History, title: str) -> plot.Picture:
    """Draws returns and hyperparameters of all members over environment steps.

    A member's line ends where the member copies a learner; its next line branches off
    its parent's. Bold is the lineage of the best member's learner, labelled with the
    numbers of the members that it was in; there is none where no member has a score.
    Raises UserError where a part of it is missing.
    """
    heights = INCHES[0], *[INCHES[1]] * len(history.ranges)
    picture = plot.Picture(figsize=(7, sum(heights)), dpi=150, layout="constrained")
    panels = picture.subplots(len(heights), sharex=True, height_ratios=heights)
    returns, *others = np.atleast_1d(panels)
    best = lineage.chosen(history)
    way = [] if best is None else lineage.way(history, best)
    _draw(returns, history, way, partial(_returns, history))
    for axes, (name, space) in zip(others, history.ranges.items(), strict=True):
        axes.update_datalim([(0.0, x) for x in space])
        _draw(axes, history, way, partial(_values, history, name))
        axes.set(ylabel=plot.plain(name), yscale="log" if space.low > 0 else "linear")
    returns.set(ylabel=plot.label("episode_return"))
    (others or [returns])[-1].set(xlabel=plot.label("steps"))
    text = f"{plot.plain(title)}: {len(history.rows)} members"
    if best is not None:
        if history.adapts and (moves := _moves(history, way)):
            _name_members(returns, moves)
        text += f"; bold: {'lineage of ' * history.adapts}the best, member-{best}"
    returns.set_title(text, pad=16, fontsize="medium")
    picture.align_ylabels()
    return picture


def _returns(history: History, stays: Sequence[Stay]) -> np.ndarray:
    """Smoothed mean returns of a learner."""
    rows = [row for x in stays for row in history.rows[x.member][x.interval]]
    points = to_points(rows, "steps", "episode_return")
    if not len(points):
        return points[:, :2]
    points = plot.thin(points)
    of_all = max(sum(map(len, rows.values())) for rows in history.rows)
    y = plot.smooth(points[:, 1], points[:, 2], min(of_all, plot.MOST_POINTS))
    return np.stack([points[:, 0], y], axis=1)


def _values(history: History, name: str, stays: Sequence[Stay]) -> np.ndarray:
    """A hyperparameter of a learner, at both ends of each interval where it is finite."""
    ends = []
    for interval, member in stays:
        last = history.rows[member][interval][-1]
        value = lineage.hyperparameters(last).get(name, np.nan)
        if np.isfinite(value):
            ends += [(history.starts[interval], value), (last["steps"], value)]
    return np.array(ends, float).reshape(-1, 2)


def _draw(axes: Axes, history: History, way: Sequence[Stay], curve: Curve) -> None:
    """Draws the curves of all learners, that of `way` in bold."""
    plot.dress(axes)
    share = 8 / max(8, len(history.rows))  # many would be a grey plane
    look = {"color": GREY, "linewidth": 0.4 + 0.5 * share}
    own: dict[int | None, list[tuple[float, np.ndarray]]] = {}  # by member, since when
    for life in sorted(lineage.lives(history), key=lambda x: x.stays[0].interval):
        points, since = curve(life.stays), history.starts[life.stays[0].interval]
        own.setdefault(life.stays[0].member, []).append((since, points))
        axes.plot(*points.T, **look)
        if len(origin := _last_before(own.get(life.parent, ()), since)):
            branch = np.concatenate([origin, points[:1]])
            axes.plot(*branch.T, **look, alpha=0.3 + 0.5 * share)
    if len(line := curve(way)):
        for steps, _ in _moves(history, way)[1:]:
            axes.axvline(steps, color=COLOR, alpha=0.4, linewidth=0.8, linestyle=":")
        axes.plot(*line.T, color=COLOR, linewidth=2)
        axes.plot(*line[-1:].T, "o", color=COLOR)
        plot.name_the_end(axes)


def _last_before(
    curves: Sequence[tuple[float, np.ndarray]], steps: float
) -> np.ndarray:
    """The last point [1, 2] up to there of curves that began before, or none, [0, 2]."""
    before = [x[x[:, 0] <= steps][-1:] for since, x in curves if since < steps]
    return before[-1] if before else np.empty((0, 2))


def _moves(history: History, way: Sequence[Stay]) -> list[tuple[float, int]]:
    """The members that a learner was in, each with the steps at which it came there; none
    where they are too many to name."""
    stays = [next(same) for _, same in itertools.groupby(way, lambda x: x.member)]
    moves = [(history.starts[interval], member) for interval, member in stays]
    return moves if len(moves) <= MOST_MOVES else []


def _name_members(axes: Axes, moves: Sequence[tuple[float, int]]) -> None:
    """Names the members that a learner was in, above."""
    look = {"textcoords": "offset points", "color": COLOR, "fontsize": 7}
    axes.annotate(
        "in member",
        (0, 1),
        xycoords="axes fraction",
        xytext=(-4, 3),
        ha="right",
        **look,
    )
    for steps, member in moves:
        place = axes.get_xaxis_transform()
        axes.annotate(str(member), (steps, 1), xycoords=place, xytext=(0, 3), **look)
