"""Functions from agent to agent: pre- and post-processing between environment and algorithm."""

from podracer.transformations.history import (
    observe_last_action,
    remember,
    stack_frames,
    stacked_spec,
)
from podracer.transformations.interface import Interface
from podracer.transformations.normalizer import (
    normalize_observations,
    normalize_rewards,
)
from podracer.transformations.ranges import (
    clip_actions,
    scale_actions,
    scale_observations,
    scaled_action_spec,
    scaled_spec,
)

__all__ = [
    "Interface",
    "clip_actions",
    "normalize_observations",
    "normalize_rewards",
    "observe_last_action",
    "remember",
    "scale_actions",
    "scale_observations",
    "scaled_action_spec",
    "scaled_spec",
    "stack_frames",
    "stacked_spec",
]
