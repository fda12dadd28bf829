"""Learning curves of all agents over several seeds.

    python -m benchmarks.learning [--only cartpole] [--seeds 3] [--out runs/learning]

Every run is a command, as a user would type it. Its result is the mean return of the
episodes that finished in the last tenth of its steps, with the exploring policy. Runs that
are complete in the folder are not repeated: interrupt it, and go on later. Leaves learning.md,
a table of all results, and for each group of tasks a figure and the commands.
"""

import dataclasses
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import rich.progress
import tyro

from benchmarks.experiments import TASKS, Task
from podracer import metrics
from podracer.files import atomic
from podracer.metrics import human
from podracer.runs import plot
from podracer.runs.evaluation import interval

HOURS = 3.0  # time limit of a run
DONE = "done.json"  # says how a run of a folder was made


@dataclasses.dataclass(frozen=True)
class Config:
    """What to run."""

    only: tuple[str, ...] = ("cartpole", "pendulum", "cheetah")
    """groups of tasks to run"""
    seeds: int = 3
    """number of runs of each task, from seed 0"""
    out: Path = Path("runs/learning")
    """folder for the runs and figures"""
    beside: tuple[Path, ...] = ()
    """curves of peers/sb3_halfcheetah.py, drawn with those of cheetah"""


def run(task: Task, seed: int, folder: Path) -> None:
    """Trains into the folder, unless the same command has finished there."""
    done = folder / DONE
    if done.exists() and json.loads(done.read_text())["command"] == task.command:
        return
    done.unlink(missing_ok=True)
    line = [sys.executable, "-m", *shlex.split(task.command)]
    line += ["--seed", str(seed), "--run", str(folder), "--overwrite", "--quiet"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    how = {
        "command": task.command,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} {platform.machine()} processors",
        "load": round(os.getloadavg()[0], 1),  # of other programs, in processors
    }
    started = time.monotonic()
    subprocess.run(line, check=True, timeout=HOURS * 3600)
    how["seconds"] = round(time.monotonic() - started, 1)
    with atomic(done) as path:
        path.write_text(json.dumps(how))


def commit() -> str:
    """The checkout's commit, with a + if files differ from it."""
    git = ["git", "describe", "--always", "--dirty=+", "--exclude", "*"]
    try:
        found = subprocess.run(
            git,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except OSError:
        return "?"
    return found.stdout.strip() or "?"


def result(folder: Path) -> float:
    """The mean return of episodes that finished in the last tenth of the run."""
    rows = [row for row in metrics.read(folder / "metrics.jsonl") if row["episodes"]]
    last = [row for row in rows if row["steps"] > 0.9 * rows[-1]["steps"]]
    total = sum(row["episodes"] * row["episode_return"] for row in last)
    return total / sum(row["episodes"] for row in last)


def points(folder: Path) -> np.ndarray:
    """The run's learning curve, for `plot.compare`."""
    rows = metrics.read(folder / "metrics.jsonl")
    return plot.to_points(rows, "steps", "episode_return")


def peer(path: Path) -> np.ndarray:
    """The same of a curve of peers/sb3_halfcheetah.py."""
    rows = metrics.read(path)
    return np.array([(row["steps"], row["mean_return"], 1.0) for row in rows])


def picture(tasks: list[Task], config: Config) -> plot.Picture:
    """The curves of a group of tasks."""
    groups = {task.agent: [points(x) for x in folders(config, task)] for task in tasks}
    if config.beside and tasks[0].group == "cheetah":
        groups["PPO of stable-baselines3"] = [peer(x) for x in config.beside]
    return plot.compare(groups)


def table(tasks: list[Task], config: Config) -> Iterator[str]:
    """Lines of Markdown: a row for each task, then the commands."""
    machine = f"{os.cpu_count()} {platform.machine()} processors"
    yield f"jax {jax.__version__} on {jax.default_backend()}, {machine}. Mean return of the"
    yield "episodes that finished in the last tenth of a run:"
    yield ""
    yield "| task | agent | steps | target | mean | 95 % interval | IQM | seeds | commit |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for task in tasks:
        places = folders(config, task)
        results = np.array([result(folder) for folder in places])
        low, high = interval(results[:, None]) if len(results) > 1 else (None, None)
        cells = [
            task.group,
            task.agent,
            human(points(places[0])[-1, 0]),
            human(task.target),
            human(results.mean()),
            "" if low is None else f"{human(low[0])} to {human(high[0])}",
            human(plot.iqm(results)),
            ", ".join(map(human, results)),
            ", ".join(
                sorted({json.loads((x / DONE).read_text())["commit"] for x in places})
            ),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield from (f"- {task.group}, {task.agent}: `{task.command}`" for task in tasks)


def folders(config: Config, task: Task) -> list[Path]:
    """The run folder of each seed."""
    name = f"{task.env}-{task.agent}".replace(", ", "-").replace(" ", "-").lower()
    name = name.replace(":", "-")
    return [config.out / task.group / f"{name}-{n}" for n in range(config.seeds)]


def main(config: Config) -> None:
    tasks = [task for task in TASKS if task.group in config.only]
    config.out.mkdir(parents=True, exist_ok=True)
    runs = [(task, n) for task in tasks for n in enumerate(folders(config, task))]
    for task, (seed, folder) in rich.progress.track(runs, "learning"):
        run(task, seed, folder)
    lines = "\n".join(table(tasks, config))
    (config.out / "learning.md").write_text(lines + "\n")
    print(lines)
    for group in config.only:
        members = [task for task in tasks if task.group == group]
        if len({task.env for task in members}) == 1:
            plot.save(picture(members, config), config.out / f"{group}.png")


if __name__ == "__main__":
    main(tyro.cli(Config))
