"""Learning curves of all agents over several seeds.

    python -m benchmarks.learning [--only cartpole] [--seeds 3] [--out runs/learning]

Every run is a command, as a user would type it. Its result is the mean return of the
episodes that finished in the last tenth of its steps, with the exploring policy. Runs that
are complete in the folder are not repeated: interrupt it, and go on later. Leaves learning.md,
a table of all results, and for each group of tasks a figure and the commands.
"""

import dataclasses
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import rich.progress
import tyro

from podracer import metrics
from podracer.metrics import human
from podracer.runs import plot
from podracer.runs.evaluation import interval

HOURS = 3.0  # time limit of a run


class Task(NamedTuple):
    """A command, and the mean return that it should reach."""

    group: str
    name: str
    command: str
    target: float


PPO, BATCH_PPO = "--agent ppo --preset", "--agent batch_ppo --preset"
MUZERO = "--agent muzero --preset small --total-steps 200_000"
TASKS = (
    Task("cartpole", "PPO, Anakin", f"anakin {PPO} small --env cartpole", 475),
    Task(
        "cartpole",
        "PPO, Sebulba",
        f"sebulba {PPO} small --env CartPole-v1 --total-steps 1_000_000",
        475,
    ),
    Task(
        "cartpole",
        "BatchPPO, Anakin",
        f"anakin {BATCH_PPO} head-cartpole --env cartpole --total-steps 200_000",
        475,
    ),
    Task(
        "cartpole",
        "BatchPPO, Sebulba",
        f"sebulba {BATCH_PPO} head-cartpole --env CartPole-v1 --total-steps 200_000"
        " --threads-per-core 1",  # 30 environments, as the original's
        475,
    ),
    Task("pendulum", "PPO", f"anakin {PPO} continuous --env pendulum", -200),
    Task(
        "pendulum", "BatchPPO", f"anakin {BATCH_PPO} head-pendulum --env pendulum", -250
    ),
    Task(
        "cheetah",
        "PPO",
        f"sebulba {PPO} mujoco --env HalfCheetah-v4 --total-steps 1_000_000",
        math.nan,
    ),
    Task(
        "cheetah",
        "BatchPPO",
        f"sebulba {BATCH_PPO} mujoco --env HalfCheetah-v4 --total-steps 1_000_000"
        " --threads-per-core 1",
        math.nan,
    ),
    Task("muzero-catch", "MuZero, Anakin", f"anakin {MUZERO} --env catch", 0.9),
    Task("muzero-catch", "MuZero, Sebulba", f"sebulba {MUZERO} --env jax:catch", 0.9),
    Task("muzero-cartpole", "MuZero", f"anakin {MUZERO} --env cartpole", 195),
    Task("muzero-empty", "MuZero", f"anakin {MUZERO} --env grid-empty", 0.9),
    Task(  # of seconds, for the tests
        "smoke",
        "IMPALA",
        "anakin --preset small --env catch --batch-size 8 --network.hidden-sizes 8"
        " --total-steps 2_000",
        math.nan,
    ),
    *(
        Task(
            f"minatar-{game}",
            name,
            f"anakin --agent {agent} --preset minatar --env minatar-{game}"
            " --total-steps 2_000_000",
            math.nan,
        )
        for game in ("breakout", "asterix", "space-invaders")
        for name, agent in (("IMPALA", "impala"), ("PPO", "ppo"))
    ),
)


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


def command(task: Task) -> str:
    """What a user would type."""
    architecture, _, flags = task.command.partition(" ")
    return f"{architecture} train {flags}"


def run(task: Task, seed: int, folder: Path) -> None:
    """Trains into the folder, unless a run has been finished there."""
    if (folder / "done").exists():
        return
    line = [sys.executable, "-m", *shlex.split(command(task))]
    line += ["--seed", str(seed), "--run", str(folder), "--overwrite", "--quiet"]
    subprocess.run(line, check=True, timeout=HOURS * 3600)
    (folder / "done").write_text(commit())


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
    groups = {task.name: [points(x) for x in folders(config, task)] for task in tasks}
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
            task.name,
            human(points(places[0])[-1, 0]),
            human(task.target),
            human(results.mean()),
            "" if low is None else f"{human(low[0])} to {human(high[0])}",
            human(plot.iqm(results)),
            ", ".join(map(human, results)),
            ", ".join(sorted({(x / "done").read_text() for x in places})),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield from (f"- {task.group}, {task.name}: `{command(task)}`" for task in tasks)


def folders(config: Config, task: Task) -> list[Path]:
    """The run folder of each seed."""
    name = task.name.replace(", ", "-").lower()
    return [config.out / f"{task.group}-{name}-{seed}" for seed in range(config.seeds)]


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
        plot.save(picture(members, config), config.out / f"{group}.png")


if __name__ == "__main__":
    main(tyro.cli(Config))
