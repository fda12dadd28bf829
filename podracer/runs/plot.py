"""Learning curves and performance profiles of runs, with confidence intervals."""

import io
import itertools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from podracer.files import atomic
from podracer.metrics import VOCABULARY, Recent, human
from podracer.runs.evaluation import interval, iqm
from podracer.runs.listing import to_points

COLORS = ("#1f6fb4", "#d1601f", "#2f8f4e", "#8a4fb0", "#b8860b", "#c2407a", "#4d4d4d")
LOOKS = cycler(linestyle=("-", "--", ":", "-.")) * cycler(color=COLORS)  # of the groups
LABELS = {
    "steps": "environment steps",
    "seconds": "seconds of training",
    "episode_return": "mean return of finished episodes",
}
SMOOTH = 0.05  # share of the curve that each point of the smoothed line averages
MOST_POINTS = 2000
MEAN_POINTS = 300  # in the mean curve of several runs
LETTERS, TITLE_LETTERS = 90, 60  # of a legend and a title in the width of a picture

STATISTICS = {"mean": np.mean, "iqm": iqm}


class Picture(Figure):
    """A figure that a notebook displays even if pyplot is not set up there."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def curve(rows: Iterable[Mapping[str, float | None]], title: str = "") -> Picture:
    """Draws the rows of a `metrics.jsonl`, or those that `train` has yielded so far.

    In a notebook, `display(curve(rows), clear=True)` in the loop draws a live curve.
    """
    return compare({title: [to_points(rows, "steps", "episode_return")]})


def compare(
    groups: Mapping[str, Sequence[np.ndarray]],
    x: str = "steps",
    y: str = "episode_return",
    statistic: str = "mean",
    title: str = "",
    ends: Mapping[str, float] | None = None,
) -> Picture:
    """Draws the mean curve of each group of runs, and its 95 % confidence interval.

    The interval is a percentile bootstrap over the runs (Efron & Tibshirani 1993). The
    mean of a group ends with its shortest run: beyond, it would be over fewer runs.

    Args:
      groups: for each name, its runs' points [N, 3]: x, y and the weight of y.
      x: "steps" or "seconds".
      y: a metric of `podracer.metrics`.
      statistic: of the runs: "mean", or "iqm", see `iqm`.
      title: of the picture; a single group's name is its own.
      ends: the number beside a group's name, where it is another one than the mean (or IQM) of its
        runs' last 100 episodes.
    """
    over = "" if statistic == "mean" else f", {statistic.upper()} of runs"
    picture, axes = _picture(label(x), label(y) + over)
    for (name, runs), look in zip(groups.items(), itertools.cycle(LOOKS)):
        runs = [points for points in runs if len(points)]
        few = [thin(points) for points in runs]
        end = (ends or {}).get(name, _group_end(runs, y, STATISTICS[statistic]))
        _draw(axes, few, name, look, end, STATISTICS[statistic])
    if not axes.lines:
        axes.set(xticks=[], yticks=[])
        nothing = "no episode has finished" if y == "episode_return" else f"no {y} yet"
        axes.text(0.5, 0.5, nothing, ha="center", transform=axes.transAxes)
    if len(groups) > 1:
        _add_legend(picture)
        axes.set_title(_lines(title, TITLE_LETTERS))
    elif groups:
        axes.set_title(*(_lines(name, TITLE_LETTERS) for name in groups))
        for line in axes.lines[-1:]:  # a dot for each of many would hide another
            place = line.get_xydata()[-1]
            axes.plot(*place, "o", color=line.get_color())
            name_the_end(axes, human(end))
    return picture


def profiles(
    groups: Mapping[str, Sequence[np.ndarray]], y: str = "episode_return"
) -> Picture:
    """Draws performance profiles: the share of each group's runs that end above a score.

    Performance profiles show all runs, where a mean hides those that fail (Agarwal et al.
    2021, arXiv:2108.13264, section 4.2). Their 95 % intervals are as in `compare`. Scores
    are compared as they are: groups should share a task.

    Args:
      groups, y: as for `compare`; a score is a run's last mean return, or the last value of
        its smoothed curve.
    """
    scores = {
        name: np.array([_end(points, y) for points in runs if len(points)])
        for name, runs in groups.items()
    }
    everyone = np.concatenate([*scores.values()])
    margin = 0.02 * (np.ptp(everyone) or 1.0)
    at = np.linspace(everyone.min() - margin, everyone.max() + margin, MEAN_POINTS)
    picture, axes = _picture(f"{label(y)} at the end of a run", "share of runs above")
    for (name, ends), look in zip(scores.items(), itertools.cycle(LOOKS)):
        above = (ends[:, None] > at).astype(float)
        if len(ends) > 1:
            axes.fill_between(
                at, *interval(above), color=look["color"], alpha=0.2, lw=0
            )
        text = f"{name}, {len(ends)} run{'s'[: len(ends) > 1]}"
        axes.plot(at, above.mean(0), linewidth=2, label=text, **look)
    _add_legend(picture)
    return picture


def save(picture: Figure, path: str | Path, format: str = "png") -> None:
    """Writes the picture atomically. Raises UserError if it cannot."""
    with atomic(Path(path)) as temporary:
        picture.savefig(temporary, format=format)


def _picture(xlabel: str, ylabel: str) -> tuple[Picture, Axes]:
    picture = Picture(figsize=(7, 4), dpi=150, layout="constrained")
    axes = picture.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    dress(axes)
    return picture, axes


def _add_legend(picture: Picture) -> None:
    """Names the curves beneath them: inside, a legend would hide some where there are many.

    The axes stay as high as they are without it.
    """
    handles, names = picture.axes[0].get_legend_handles_labels()
    names = [_lines(name, LETTERS - 8) for name in names]
    widest = max((len(line) for name in names for line in name.split("\n")), default=0)
    columns = max(1, LETTERS // (widest + 8))  # with the piece of its curve
    rows = -(-sum(name.count("\n") + 1 for name in names) // columns)
    picture.set_figheight(picture.get_figheight() + 0.18 * rows)
    picture.legend(
        handles,
        names,
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize="small",
    )


def _lines(name: str, letters: int) -> str:
    """A name as text that is no formula, in lines of so many letters."""
    return plain(textwrap.fill(name, letters))


def dress(axes: Axes) -> None:
    """What all pictures have in common."""
    axes.xaxis.set_major_formatter(lambda number, _: _tick(axes.get_xticks(), number))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _tick(ticks: Sequence[float], number: float) -> str:
    """A number with as many digits as it takes to tell the ticks of an axis apart."""
    for digits in range(3, 9):
        if len({human(x, digits) for x in ticks}) == len(ticks):
            break
    return human(number, digits)


def plain(name: str) -> str:
    """A name as text, which is no formula."""
    return name.replace("$", r"\$")


def _end(points: np.ndarray, y: str) -> float:
    """A run's score: its last mean return, or the end of its smoothed curve."""
    if y == "episode_return":
        return _mean_return(points)
    return float(smooth(points[:, 1], points[:, 2])[-1])


def _mean_return(points: np.ndarray) -> float:
    """Of a run's last episodes, as the run itself prints it."""
    rows = ({"episodes": n, "episode_return": value} for _, value, n in points)
    return Recent(rows).mean_return()


def _draw(
    axes: Axes,
    runs: list[np.ndarray],
    name: str,
    look: dict,
    end: float,
    statistic: Callable,
) -> None:
    """Draws a group of runs, with `end`, its score, in its label."""
    if not runs:
        return
    if len(runs) == 1:
        (points,) = runs
        x, mean = points[:, 0], smooth(points[:, 1], points[:, 2])
        axes.plot(*points[:, :2].T, color=look["color"], alpha=0.3, linewidth=1)
    else:
        x, values = on_one_axis(runs)
        mean, band = statistic(values, axis=0), interval(values, statistic)
        axes.fill_between(x, *band, color=look["color"], alpha=0.2, lw=0)
        name = f"{name}, {len(runs)} runs"
    axes.plot(x, mean, linewidth=2, label=f"{name}: {human(end)}", **look)


def _group_end(runs: Sequence[np.ndarray], y: str, statistic: Callable) -> float:
    """The score of runs where the shortest ends; NaN if there are none."""
    if not runs:
        return np.nan
    last = min(points[-1, 0] for points in runs)
    return float(statistic([_end(points[points[:, 0] <= last], y) for points in runs]))


def name_the_end(axes: Axes, text: str | None = None) -> None:
    """Labels the end of the last curve, if there is one, by default with its last value."""
    for line in axes.lines[-1:]:
        x, y = line.get_xydata()[-1]
        axes.annotate(
            human(y) if text is None else text,
            (x, y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
        )


def on_one_axis(runs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """x [N] over the range common to all runs, and their smoothed y there, [runs, N]."""
    last = min(points[-1, 0] for points in runs)
    first = min(last, max(points[0, 0] for points in runs))
    x = np.linspace(first, last, MEAN_POINTS)
    lines = [(p[:, 0], smooth(p[:, 1], p[:, 2])) for p in runs]
    return x, np.stack([np.interp(x, *line) for line in lines])


def label(name: str) -> str:
    """A metric and its unit."""
    if name in LABELS:
        return LABELS[name]
    unit, _ = VOCABULARY.get(name, ("", ""))  # an agent has its own metrics, too
    return f"{name} ({unit})" if unit else name


def thin(points: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """At most so many points: matplotlib fails on a noisy line of a million."""
    chunks = np.array_split(points, min(len(points), most))
    x = [chunk[-1, 0] for chunk in chunks]
    y = [np.average(chunk[:, 1], weights=chunk[:, 2]) for chunk in chunks]
    weights = [chunk[:, 2].sum() for chunk in chunks]
    return np.stack([x, y, weights], axis=1)


def smooth(
    values: np.ndarray, weights: np.ndarray, of: int | None = None
) -> np.ndarray:
    """The weighted mean in a window around each point, for a part of a curve of `of`."""
    side = int((of or len(values)) * SMOOTH / 2)
    window, there = np.ones(2 * side + 1), slice(side, side + len(values))
    mean = [np.convolve(x, window)[there] for x in (values * weights, weights)]
    return mean[0] / mean[1]
