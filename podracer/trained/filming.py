"""Filming a policy, whichever architecture acts: frames of whole episodes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np

from podracer.agent import Agent
from podracer.errors import check_play, check_range

MOST_STEPS = 30_000  # all pictures are in memory until the film is written
FPS = 10.0  # frames per second of an environment that has no `render_fps`


class Frame(NamedTuple):
    """A picture, and the timestep that it shows."""

    picture: np.ndarray  # uint8 [H, W], [H, W, 1] or [H, W, 3]
    timestep: dm_env.TimeStep  # step_type [], reward []; without an observation


class Film(NamedTuple):
    """Episodes to watch, one after the other."""

    frames: list[Frame]
    fps: float  # frames per second at which a person can follow


def check(episodes: int, max_steps: int, seed: int) -> None:
    """Raises UserError unless these episodes can be filmed with this seed."""
    check_range("max_steps", max_steps, 1, MOST_STEPS)
    check_play(episodes, max_steps, seed)


def actor_step_of(agent: Agent, greedy: bool) -> Callable:
    """How to act: without exploration if `greedy`."""
    return agent.greedy_actor_step if greedy else agent.actor_step


def film(
    start: Callable[[], tuple[Any, Frame]],
    step: Callable[[Any, int], tuple[Any, Frame]],
    episodes: int,
    max_steps: int,
    environment: Any,
) -> Film:
    """Plays episodes one after the other; each timestep is a frame.

    Args:
      start: () -> (state, frame).
      step: (state, number of the frame, from 1) -> the same, one timestep later.
      episodes: number of whole episodes.
      max_steps: environment steps after which the film ends even if the episodes have
        not.
      environment: sets the pace by its `render_fps`, if it has one.
    """
    state, frame = start()
    frames, ended, steps = [jax.device_get(frame)], 0, 0
    while ended < episodes and steps < max_steps:
        state, frame = step(state, len(frames))
        frames.append(jax.device_get(frame))
        ended += int(frames[-1].timestep.last())
        steps += int(not frames[-1].timestep.first())
    return Film(frames, getattr(environment, "render_fps", FPS))
