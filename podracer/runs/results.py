"""What several runs have reached together: a line for each group of runs that differ in
their seeds alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from podracer import metrics
from podracer.metrics import human
from podracer.runs import run_folder
from podracer.runs.evaluation import interval


def grouped(folders: Sequence[Path], title: str) -> dict[str, list[Path]]:
    """The folders of runs by what their names say of the sweep; by `title` without one."""
    groups: dict[str, list[Path]] = {}
    for folder in folders:
        group = folder.name.rpartition("seed-")[0].rstrip("-") or title
        groups.setdefault(group, []).append(folder)
    return groups


def described(groups: Mapping[str, Sequence[Path]]) -> list[str]:
    """The mean return of each group, over its runs' last episodes, with its 95 % interval.

    Runs in which no episode ended are left out of the mean, and counted.
    """
    return [f"{name}: {_of_group(folders)}" for name, folders in groups.items()]


def _of_group(folders: Sequence[Path]) -> str:
    returns = np.array([_mean_return(folder) for folder in folders])
    known = returns[np.isfinite(returns)]
    if not len(known):
        return "no episode ended"
    line = f"mean return {human(float(known.mean()))}"
    if len(known) > 1:
        low, high = (float(x[0]) for x in interval(known[:, None]))
        line += f" ({human(low)} to {human(high)}, 95 %) over {len(known)} runs"
    if missing := len(returns) - len(known):
        line += f"; {missing} without an episode that ended"
    return line


def _mean_return(folder: Path) -> float:
    """Of a run's last episodes, as the run itself prints it."""
    path = folder / run_folder.METRICS
    rows = metrics.read(path) if path.exists() else ()
    return metrics.Recent(rows).mean_return()
