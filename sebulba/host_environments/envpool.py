"""EnvPool, through its gymnasium interface (arXiv:2206.10558).

Its `dm` interface calls a time limit a termination, so that one cannot bootstrap there.
"""

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from podracer.errors import UserError, nearest

FIRST, MID, LAST = (np.int32(step_type) for step_type in dm_env.StepType)


@dataclasses.dataclass(frozen=True)
class Atari:
    """How Atari is played; by default as in IMPALA's experiments."""

    episodic_life: bool = True
    """an episode is a life; returns of whole games are reported beside"""
    sticky_actions: float = 0.0
    """probability that the emulator repeats the last action instead"""
    full_action_space: bool = False
    """all 18 actions, not just the game's own"""
    noop_max: int = 30
    """no-ops at the start of a game, at most"""
    frame_skip: int = 4
    """emulator frames in an environment step; the last two are merged"""
    stack_num: int = 1
    """frames in an observation; 1 leaves stacking to the agent, on its core"""
    image_size: int = 84
    """pixels of a frame's side"""

    def options(self) -> dict[str, Any]:
        """As EnvPool calls them."""
        options = dataclasses.asdict(self)
        size = options.pop("image_size")
        sticky = options.pop("sticky_actions")
        return options | {
            "repeat_action_probability": sticky,
            "img_height": size,
            "img_width": size,
        }


class EnvPool:
    """A batch of one EnvPool environment with discrete actions.

    Frames are [H, W, C]. An episode that ends with a life starts the next one where the
    game goes on, after a no-op (and FIRE where the game has it); its `elapsed_step` runs on.

    Args:
      name: as in `envpool.list_all_envs()`.
      seeds: one for each environment of the batch.
      num_threads: that step the environments; by default one a CPU core.
      max_episode_steps: environment steps to a truncation; by default EnvPool's own.
      atari: how it is played, if it is an Atari game.

    Raises:
      UserError: EnvPool is not installed or has no such environment, or it is not for
        one player with discrete actions.
    """

    def __init__(
        self,
        name: str,
        seeds: Sequence[int],
        num_threads: int | None = None,
        max_episode_steps: int | None = None,
        atari: Atari = Atari(),
    ):
        envpool = _import(name)
        spec = envpool.make_spec(name)
        _check(name, spec)
        self.batch_size = len(seeds)
        self._action_spec = spec.action_spec()
        options = atari.options() if hasattr(spec.config, "episodic_life") else {}
        if max_episode_steps:
            options["max_episode_steps"] = max_episode_steps
        self._pool = envpool.make_gymnasium(
            name,
            num_envs=self.batch_size,
            num_threads=num_threads or min(self.batch_size, os.cpu_count() or 1),
            seed=list(seeds),
            **options,
        )
        # Where it can stack frames, the channels come first.
        self._channels_first = hasattr(spec.config, "stack_num")
