"""The flags that `anakin train` and `sebulba train` share."""

import dataclasses
from typing import Any, ClassVar

from podracer import command, networks
from podracer.errors import check_at_least_one
from podracer.runs import run
from podracer.transformations import Interface
from podracer.transformations.replay import Config as Replay


@dataclasses.dataclass(frozen=True)
class Train:
    """Flags of both commands; each adds its own. `config.json` keeps them side by side."""

    MAIN: ClassVar[tuple[str, ...]] = (  # which `--help` shows
        *("agent", "env", "preset", "total-steps", "batch-size", "seed", "seeds"),
        *("run", "resume", "config", "network"),
    )

    agent: Any
    env: Any
    network: Any = dataclasses.field(default_factory=networks.Config)
    interface: Interface = dataclasses.field(default_factory=Interface)
    replay: Replay = dataclasses.field(default_factory=Replay)
    total_steps: int = 1_000_000
    """number of environment steps to train for"""
    batch_size: int = 64
    """number of environments; a preset has its own"""
    unroll_length: int = 16
    """number of environment steps between two updates; a preset has its own"""
    seed: int = 0
    """random seed; equal seeds give identical runs"""
    cores: int | None = None
    """number of cores to use; default: all"""
    keep: command.Flat[run.Options] = dataclasses.field(default_factory=run.Options)

    @property
    def number_of_seeds(self) -> int:
        """How many runs there are side by side, each with a seed of its own."""
        return 1

    def __post_init__(self):
        check_at_least_one(
            total_steps=self.total_steps,
            batch_size=self.batch_size,
            unroll_length=self.unroll_length,
        )
