"""Learning curves of all agents over several seeds.

    python -m benchmarks.learning [--only cartpole] [--seeds 3] [--out runs/learning]

Every run is a command, as a user would type it. Its result is the mean return of the
episodes that finished in the last tenth of its steps, with the exploring policy. Runs that
are complete in the folder are not repeated. Prints a table (median and range over seeds)
and draws a figure for each group of tasks.
"""

import dataclasses
import math
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib.figure
import rich.console
import rich.progress
import rich.table
import tyro

from podracer import metrics
from podracer.metrics import human

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


def run(task: Task, seed: int, folder: Path) -> None:
    """Trains into the folder, unless a run has been finished there."""
    done = folder / "done"
    if done.exists():
        return
    architecture, *flags = shlex.split(task.command)
    command = [sys.executable, "-m", architecture, "train", *flags]
    command += ["--seed", str(seed), "--run", str(folder), "--overwrite", "--quiet"]
    subprocess.run(command, check=True, timeout=HOURS * 3600)
    done.touch()


def curve(folder: Path) -> list[tuple[float, float]]:
    """(environment steps, mean return) of the rows in which episodes finished."""
    rows = metrics.read(folder / "metrics.jsonl")
    return [
        (row["steps"], row["episode_return"])
        for row in rows
        if row["episode_return"] is not None
    ]


def result(folder: Path) -> float:
    """The mean return of episodes that finished in the last tenth of the run."""
    rows = [row for row in metrics.read(folder / "metrics.jsonl") if row["episodes"]]
    last = [row for row in rows if row["steps"] > 0.9 * rows[-1]["steps"]]
    total = sum(row["episodes"] * row["episode_return"] for row in last)
    return total / sum(row["episodes"] for row in last)


def seconds(folder: Path) -> float:
    return sum(row["seconds"] for row in metrics.read(folder / "metrics.jsonl"))


def picture(tasks: list[Task], config: Config, path: Path) -> None:
    """Draws every run of a group, one colour per task."""
    figure = matplotlib.figure.Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, task in enumerate(tasks):
        for seed in range(config.seeds):
            axes.plot(
                *zip(*curve(place(config, task, seed)), strict=True),
                color=f"C{number}",
                alpha=0.7,
                label=task.name if seed == 0 else None,
            )
    for other in config.beside if tasks[0].group == "cheetah" else ():
        rows = list(metrics.read(other))
        axes.plot(
            [row["steps"] for row in rows],
            [row["mean_return"] for row in rows],
            color="grey",
            alpha=0.7,
            label="PPO of stable-baselines3" if other == config.beside[0] else None,
        )
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean return of finished episodes")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def place(config: Config, task: Task, seed: int) -> Path:
    name = task.name.replace(", ", "-").lower()
    return config.out / f"{task.group}-{name}-{seed}"


def main(config: Config) -> None:
    tasks = [task for task in TASKS if task.group in config.only]
    config.out.mkdir(parents=True, exist_ok=True)
    runs = [(task, seed) for task in tasks for seed in range(config.seeds)]
    for task, seed in rich.progress.track(runs, "learning"):
        run(task, seed, place(config, task, seed))
    table = rich.table.Table(
        "task", "agent", "steps", "target", "median", "range", "seconds"
    )
    for task in tasks:
        folders = [place(config, task, seed) for seed in range(config.seeds)]
        results = sorted(map(result, folders))
        table.add_row(
            task.group,
            task.name,
            human(curve(folders[0])[-1][0]),
            human(task.target),
            f"{statistics.median(results):.1f}",
            f"{results[0]:.1f} to {results[-1]:.1f}",
            f"{statistics.median(map(seconds, folders)):.0f}",
        )
    rich.console.Console(width=100).print(table)
    for group in config.only:
        members = [task for task in tasks if task.group == group]
        picture(members, config, config.out / f"{group}.png")


if __name__ == "__main__":
    main(tyro.cli(Config))
