"""Environments alone: ours beside gymnax's; and whether other libraries' train here.

    python -m benchmarks.environments [--names cartpole catch] [--rounds 3]
    python -m benchmarks.environments --train [--names gymnax:CartPole-v1 brax:ant]

The first plays random actions with automatic resets in every native environment and in
gymnax's of the same name, each in a process of its own, in turn, on one device; it
prints medians of environment steps/s. The second trains through each adapter. Both make one
virtual environment with all four libraries when it is first needed (about 2 GB), see
`benchmarks.peers.environments`.
"""

import dataclasses
import json
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

ROOT = Path(__file__).parents[1]

peers.PINS["libraries"] = (
    *("gymnax==1.0.1", "brax==0.14.2", "jumanji==1.1.2", "playground==0.2.0"),
    *("gymnasium==1.3.0", "mujoco==4.0.0", "mujoco-mjx==3.17.0", "warp-lang==1.19.0"),
    *("rlax==0.1.9", "distrax==0.1.9", "chex==0.1.92", "dm-env==1.6"),
    *("tyro==1.0.17", "rich==15.0.0", "matplotlib==3.11.2", *peers.JAX),
    *("tfp-nightly==0.26.0.dev20261027", "orbax-checkpoint==0.12.8"),
)

GYMNAX = {  # ours: theirs
    "acrobot": "Acrobot-v1",
    "cartpole": "CartPole-v1",
    "catch": "Catch-bsuite",
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
    """(name, ours, gymnax's, ratio) of each environment."""
    python = peers.python_of("libraries")
    for name in config.names or ENVIRONMENTS:
        who = {name: sys.executable}
        if name in GYMNAX:
            who[f"gymnax:{GYMNAX[name]}"] = python
        speeds = {one: [] for one in who}
        for _ in range(config.rounds):
            for one, interpreter in who.items():
                numbers = config.batch_size, config.steps, config.seconds
                line = run(interpreter, "-m", "benchmarks.random_play", one, *numbers)
                speeds[one].append(float(line))
        medians = [statistics.median(x) for x in speeds.values()]
        millions = [f"{x / 1e6:.2f} M" for x in medians]
        ratio = f"{medians[0] / medians[1]:.2f}" if len(medians) == 2 else "-"
        yield name, millions[0], *(millions[1:] or "-"), ratio


def trainings(config: Config) -> Iterator[tuple[str, ...]]:
    """(name, steps, steps/s after compilation, seconds to compile, return) of each."""
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
        names = ("ours, steps/s", "gymnax, steps/s", "ours / gymnax")
    table = rich.table.Table("environment", *names)
    for row in trainings(config) if config.train else throughputs(config):
        print(*row, file=sys.stderr)
        table.add_row(*row)
    rich.print(table)
