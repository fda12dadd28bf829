"""The protocol of environments on the host: batches of them, as numpy arrays."""

from typing import Any, NamedTuple, Protocol

import dm_env
import numpy as np


class HostEnvironment(Protocol):
    """B environments that step together; owned by one actor thread.

    Timesteps are dm_env's, with a leading axis B: step_type int32, reward float32 (0 at
    FIRST), discount float32 (1 at FIRST, 0 where an episode terminated, 1 where it was
    cut off), observation a pytree. An environment that was at LAST ignores its action
    and is at FIRST of a new episode. Arrays that were returned are not written again.

    One whose episodes can be saved offers two methods more, and a run in lock-step goes
    on with them bit for bit: `snapshot()`, a tree of arrays (none of 64 bits) that are
    not written again, and `restore(snapshot)`, called after `reset`.
    """

    batch_size: int  # B
    frames_per_step: int  # emulator frames in an environment step

    def reset(self) -> dm_env.TimeStep:
        """FIRST in every environment. Called before any step."""

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """The timesteps after `action` [B, ...]."""

    def observation_spec(self) -> Any:
        """A pytree of dm_env specs, of one environment."""

    def action_spec(self) -> Any:
        """A dm_env spec, of one environment."""

    def finished_games(self) -> "Games | None":
        """Of what finished since the last call; None if episodes are whole games."""

    def lost_episodes(self) -> int:
        """Unfinished episodes that were discarded since the last call."""

    def close(self) -> None:
        """Frees what the environments hold. Called once, last."""


class Games(NamedTuple):
    """Whole games, where an episode is only a part of one (a life)."""

    finished: float
    return_sum: float
