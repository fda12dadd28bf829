"""Environments alone: ours beside gymnax's; and whether other libraries' train here.

    python -m benchmarks.environments [--names cartpole catch] [--rounds 3]
    python -m benchmarks.environments --train [--names gymnax:CartPole-v1 brax:ant]

The first plays random actions with automatic resets in every native environment, in
gymnax's of the same name, and in the original in Python (one copy of that), each in a
process of its own, in turn, on one device; it prints medians of environment steps/s. The
second trains through each adapter. Both create one virtual environment with all four
libraries on first use (about 2 GB), see `benchmarks.peers.environments`.
"""

import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import rich
import rich.table
import tyro

from benchmarks.peers import environments as peers
from envs_jax import ENVIRONMENTS
from podracer.metrics import human

ROOT = Path(__file__).parents[1]

peers.PINS["libraries"] = (
    *("gymnax==1.0.1", "brax==0.14.2", "jumanji==1.1.2", "playground==0.2.0"),
    *(
        "gymnasium==1.3.0",
        "minatar==1.0.15",
        "mujoco==4.0.0",
        "mujoco-mjx==3.17.0",
        "warp-lang==1.19.0",
    ),
    *("rlax==0.1.9", "distrax==0.1.9", "chex==0.1.92", "dm-env==1.6"),
    *("tyro==1.0.17", "rich==15.0.0", "matplotlib==3.11.2", *peers.JAX),
    *("tfp-nightly", "orbax-checkpoint==0.12.8"),
)

GYMNAX = {  # ours: theirs
    "acrobot": "Acrobot-v1",
    "cartpole": "CartPole-v1",
    "catch": "Catch-bsuite",
    "deep-sea": "DeepSea-bsuite",
    "memory-chain": "MemoryChain-bsuite",
    "minatar-asterix": "Asterix-MinAtar",
    "minatar-breakout": "Breakout-MinAtar",
    "minatar-freeway": "Freeway-MinAtar",
    "minatar-space-invaders": "SpaceInvaders-MinAtar",
    "mountain-car": "MountainCar-v0",
    "mountain-car-continuous": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
    "umbrella": "UmbrellaChain-bsuite",
}
ORIGINAL = {
    "acrobot": "gymnasium:Acrobot-v1",
    "cartpole": "gymnasium:CartPole-v1",
    "mountain-car": "gymnasium:MountainCar-v0",
    "mountain-car-continuous": "gymnasium:MountainCarContinuous-v0",
    "pendulum": "gymnasium:Pendulum-v1",
    "minatar-asterix": "minatar:asterix",
    "minatar-breakout": "minatar:breakout",
    "minatar-freeway": "minatar:freeway",
    "minatar-seaquest": "minatar:seaquest",
    "minatar-space-invaders": "minatar:space_invaders",
}
TRAINED = (
    *("gymnax:CartPole-v1", "brax:inverted_pendulum", "jumanji:Snake-v1"),
    "playground:CartpoleBalance",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    names: tuple[str, ...] = ()
    """environments; by default all of ours, or one of each library"""
    train: bool = False
    """train through the adapters, rather than time environments"""
    rounds: int = 3
    """turns of ours and theirs"""
    seconds: float = 1.0
    """of each measurement, after compilation"""
    batch_size: int = 2_048
    steps: int = 128
    """of every environment in one call of the program"""
    total_steps: int = 4_096
    """of a training"""


def run(*command) -> str:
    """The last line that a process prints. Raises RuntimeError with its complaint."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env=peers.clean_environment(JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr[-2_000:]}")
    return (done.stdout.splitlines() or [""])[-1]


def throughputs(config: Config) -> Iterator[tuple[str, ...]]:
    """(name, ours, gymnax's, ours / gymnax's, the original's) of each environment."""
    available = peers.is_available("libraries")
    python = peers.python_of("libraries") if available else None
    for name in config.names or ENVIRONMENTS:
        who = {"ours": (name, sys.executable)}
        if available and name in GYMNAX:
            who["gymnax"] = (f"gymnax:{GYMNAX[name]}", python)
        if available and name in ORIGINAL:
            who["original"] = (ORIGINAL[name], python)
        speeds: dict[str, list[float]] = {one: [] for one in who}
        for _ in range(config.rounds):
            for one, (theirs, interpreter) in who.items():
                numbers = config.batch_size, config.steps, config.seconds
                line = run(
                    interpreter, "-m", "benchmarks.random_play", theirs, *numbers
                )
                speeds[one].append(float(line))
        medians = {one: statistics.median(x) for one, x in speeds.items()}
        ratio = medians["ours"] / medians.get("gymnax", math.nan)
        told = [
            human(medians[x]) if x in medians else "-" for x in ("gymnax", "original")
        ]
        yield name, human(medians["ours"]), told[0], f"{ratio:.2f}", told[1]


def trainings(config: Config) -> Iterator[tuple[str, ...]]:
    """(name, steps, steps/s after compilation, seconds to compile, return) of each."""
    if not peers.is_available("libraries"):
        return
    python = peers.python_of("libraries")
    for name in config.names or TRAINED:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            flags = {
                "agent": "ppo" if not name.startswith("gymnax") else "impala",
                "env": name,
                "total-steps": config.total_steps,
                "batch-size": 16,
                "updates-per-report": 4,
                "run": path,
            }
            command = [f"--{flag}={value}" for flag, value in flags.items()]
            run(python, "-m", "anakin", "train", *command, "--quiet")
            rows = [*map(json.loads, (path / "metrics.jsonl").read_text().splitlines())]
        last = rows[-1]
        numbers = (last["steps_per_second"], last["compile_seconds"])
        returns = [x for row in rows if (x := row.get("episode_return")) is not None]
        mean = f"{returns[-1]:.2f}" if returns else "-"
        yield name, str(last["steps"]), *(f"{x:.0f}" for x in numbers), mean


if __name__ == "__main__":
    config = tyro.cli(Config, description=__doc__)
    names = ("steps", "steps/s", "compile s", "return")
    if not config.train:
        names = ("ours, steps/s", "gymnax", "ours / gymnax", "original")
    table = rich.table.Table("environment", *names)
    for row in trainings(config) if config.train else throughputs(config):
        print(*row, file=sys.stderr)
        table.add_row(*row)
    rich.print(table)
