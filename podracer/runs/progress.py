"""The progress of a run: a live bar on a terminal or in a notebook, else plain lines."""

import importlib.util
import math
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self

import rich.console
import rich.progress
from rich.table import Column

from podracer.metrics import NewestHalf, Recent, human
from podracer.metrics.recent import EPISODES

LINE_SECONDS = 60.0  # between two plain lines, unless a tenth of the run is sooner
NARROWEST = 4  # columns of the bar: all else fits into 80 columns beside it


class Progress:
    """Shows on stdout how far a run of `total_steps` environment steps has come.

    The time before the first metrics is compilation, which is reported separately.

    Args:
      total_steps: environment steps of the whole run.
      title: printed before the first metrics.
      quiet: print nothing.
      before: the rows of the run that this one resumes, for its mean return.
    """

    def __init__(
        self,
        total_steps: int,
        title: str = "training",
        quiet: bool = False,
        before: Iterable[Mapping[str, Any]] = (),
    ):
        console = rich.console.Console()
        live = not quiet and _is_live(console)
        self._quiet, self._plain = quiet, not quiet and not live
        self._bar = rich.progress.Progress(
            rich.progress.TimeElapsedColumn(),
            rich.progress.BarColumn(None, table_column=Column(min_width=NARROWEST)),
            rich.progress.TextColumn("{task.description}", markup=False),
            console=console,
            expand=True,
            disable=not live,
        )
        self._total, self._title = total_steps, title
        self._steps, self._seconds = 0.0, 0.0  # timed here; a resumed run has more
        self._compiled = False
        self._recent, self._newest = Recent(), NewestHalf()
        for row in before:
            self._count(row)
        self._last_line = (-math.inf, 0)  # when, and in which tenth of the run

    def __enter__(self) -> Self:
        compiling = f"{self._title}: compiling"
        if self._plain:
            self._say(compiling)
        self._task = self._bar.add_task(compiling, total=None)
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if not self._bar.disable:  # rich 13 prints an empty line even so
            self._bar.stop()

    def update(self, metrics: Mapping[str, float]) -> None:
        """Shows one row of metrics, as `podracer.metrics.VOCABULARY` names them."""
        if not self._compiled:
            self._say(f"{self._title}: compiled in {metrics['compile_seconds']:.1f} s")
            self._compiled = True
        if metrics["seconds"]:  # else there is no speed either
            self._seconds += metrics["seconds"]
            self._steps += metrics["steps_per_second"] * metrics["seconds"]
        self._count(metrics)
        steps = min(int(metrics["steps"]), self._total)
        line = self._line(steps, metrics["steps_per_second"])
        done = f"{steps / self._total:4.0%}  "  # a bar shows it
        self._bar.update(
            self._task, description=line, completed=steps, total=self._total
        )
        if self._plain and self._is_due(steps):
            self._say(done + line)

    def summary(self) -> str:
        """The mean return, as the curve is labelled, and the speed."""
        speed = self._steps / self._seconds if self._seconds else math.nan
        return f"mean {self._return()}, {human(speed)} steps/s"

    def advice(self) -> str:
        """A line where the mean return says little about the agent; else empty."""
        if not self._steps or not self._newest.few_end():
            return ""
        ended = (
            "few episodes end" if self._newest.has_episodes() else "no episode ended"
        )
        return (
            f"{ended} in the newest half of the run, and nothing is known of the return of "
            "the others: give the environment a time limit, or train for longer"
        )

    def _count(self, row: Mapping[str, Any]) -> None:
        self._recent.add(row)
        self._newest.add(row)

    def _return(self) -> str:
        """Of the newest episodes, and how many they are where they are few."""
        if not self._newest.has_episodes():
            return "return -"
        mean, episodes = self._recent.mean_return(), self._recent.episodes()
        few = f" ({episodes} ended)" if episodes < EPISODES else ""
        return f"return {human(mean)}{few}"

    def _line(self, steps: int, steps_per_second: float) -> str:
        left = self._total - steps
        rest = left * self._seconds / self._steps if self._steps else math.nan
        return (
            f"{human(steps)}/{human(self._total)} steps"
            f"  {human(steps_per_second)} steps/s"
            f"  {self._return()}"
            f"  ETA {_clock(rest)}"
        )

    def _is_due(self, steps: int) -> bool:
        now, tenth = time.monotonic(), 10 * steps // self._total
        last_time, last_tenth = self._last_line
        if now < last_time + LINE_SECONDS and tenth == last_tenth:
            return False
        self._last_line = now, tenth
        return True

    def _say(self, line: str) -> None:
        if not self._quiet:
            print(line, flush=True)  # rich moves it above the live bar


def _clock(seconds: float) -> str:
    """For example 0:08:20, 3d 04h, >999d; NaN is a dash."""
    if math.isnan(seconds):
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}:{minutes:02}:{seconds:02}"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02}h" if days < 1000 else ">999d"


def _is_live(console: rich.console.Console) -> bool:
    if console.is_jupyter:  # where rich draws through ipywidgets
        return importlib.util.find_spec("ipywidgets") is not None
    return sys.stdout.isatty() and not console.is_dumb_terminal
