"""The cost of checkpoints: the time of a run with many of them and with none, in turn.

    python -m benchmarks.checkpoints [--hidden 1024] [--turns 5]

Always the same Anakin run. Prints the seconds per checkpoint (the difference of the medians
over their number) and their share of ten minutes, the default interval.
"""

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import jax
import rich.progress
import tyro

import anakin
import envs_jax
from podracer import networks
from podracer.agents import ppo
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.checkpoints.checkpoint import Config as Saving

INTERVAL = 600.0  # seconds between two by default


@dataclasses.dataclass(frozen=True)
class Config:
    """The run."""

    hidden: int = 512
    """units of each of two layers"""
    batch_size: int = 256
    saves: int = 4
    """checkpoints per turn"""
    turns: int = 5


def run(config: Config, folder: Path | None) -> tuple[float, int]:
    """Seconds of a run, compilation left out, and the bytes of its state."""
    environment = envs_jax.make("cartpole")
    network = networks.actor_critic(
        environment.observation_spec(),
        environment.action_spec(),
        networks.Config(hidden_sizes=(config.hidden,) * 2),
    )
    updates = anakin.train(
        ppo.make_agent(ppo.Config(total_steps=1), network),
        environment,
        batch_size=config.batch_size,
        unroll_length=32,
        total_steps=config.batch_size * 32 * 6 * (config.saves + 1),
        updates_per_report=6,
    )
    state, metrics = next(updates)  # compiled, and warm
    size = sum(x.nbytes for x in jax.tree.leaves(state) if hasattr(x, "nbytes"))
    started = time.perf_counter()
    if folder is None:
        for state, metrics in updates:
            jax.block_until_ready(state)
    else:
        with Checkpoints(folder, Saving(minutes=0.0)) as checkpoints:
            for state, metrics in updates:
                checkpoints.save(state, metrics)
    return time.perf_counter() - started, size


def main(config: Config) -> None:
    seconds: dict[bool, list[float]] = {True: [], False: []}
    size = 0
    for _ in rich.progress.track(range(config.turns), "turns"):
        for saves in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                took, size = run(config, Path(folder) / "all" if saves else None)
                seconds[saves].append(took)
    with_them, without = (statistics.median(seconds[x]) for x in (True, False))
    one = (with_them - without) / config.saves
    print(
        f"{size / 1e6:.1f} MB: {with_them:.2f} s with {config.saves} checkpoints, "
        f"{without:.2f} s without: {one:.3f} s each, {one / INTERVAL:.3%} of {INTERVAL:.0f} s"
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
