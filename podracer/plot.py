"""The learning curve of a run: mean return by environment steps."""

import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from podracer.metrics import human
from podracer.run_folder import atomic

COLOR = "#1f6fb4"
SMOOTH = 0.05  # the share of the curve that one point of the smooth line averages
MOST_POINTS = 2000


class Picture(Figure):
    """A figure that any notebook shows, whether or not pyplot has been set up there."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def curve(rows: Iterable[Mapping[str, float | None]], title: str = "") -> Picture:
    """Draws the rows of a `metrics.jsonl`, or what `train` yielded, so far.

    In a notebook, `display(curve(rows), clear=True)` in the training loop is a live one.
    """
    picture = Picture(figsize=(7, 4), dpi=150, layout="constrained")
    axes = picture.add_subplot(title=title, xlabel="environment steps")
    axes.set_ylabel("mean return of finished episodes")
    axes.xaxis.set_major_formatter(lambda steps, _: human(steps))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)

    points = np.array([point for row in rows if (point := _point(row))]).reshape(-1, 3)
    if not len(points):
        axes.set(xticks=[], yticks=[])
        axes.text(
            0.5, 0.5, "no episode has finished", ha="center", transform=axes.transAxes
        )
        return picture
    steps, returns, episodes = _thin(points).T
    smooth = _smooth(returns, episodes)
    axes.plot(steps, returns, color=COLOR, alpha=0.3, linewidth=1)
    axes.plot(steps, smooth, color=COLOR, linewidth=2)
    axes.plot(steps[-1], smooth[-1], "o", color=COLOR)
    axes.annotate(
        human(smooth[-1]),
        (steps[-1], smooth[-1]),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        color=COLOR,
    )
    return picture


def save(picture: Figure, path: str | Path) -> None:
    """Writes a PNG, whole or not at all. Raises UserError where it cannot."""
    with atomic(Path(path)) as temporary:
        picture.savefig(temporary, format="png")


def _point(row: Mapping[str, float | None]) -> tuple[float, float, float] | None:
    value = row["episode_return"]
    if value is None or math.isnan(value):
        return None
    return row["steps"], value, max(row["episodes"], 1)


def _thin(points: np.ndarray) -> np.ndarray:
    """At most MOST_POINTS: matplotlib fails on a noisy line of a million."""
    chunks = np.array_split(points, min(len(points), MOST_POINTS))
    steps = [chunk[-1, 0] for chunk in chunks]
    episodes = [chunk[:, 2].sum() for chunk in chunks]
    returns = [np.average(chunk[:, 1], weights=chunk[:, 2]) for chunk in chunks]
    return np.stack([steps, returns, episodes], axis=1)


def _smooth(returns: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """The mean return of all episodes in a window around each point."""
    window = np.ones(2 * int(len(returns) * SMOOTH / 2) + 1)
    mean = [np.convolve(x, window, "same") for x in (returns * episodes, episodes)]
    return mean[0] / mean[1]
