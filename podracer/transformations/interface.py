"""Pre- and post-processing, as flags: see normalizer.py and ranges.py."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Interface:
    """How observations, rewards and actions are processed between environment and agent."""

    normalize_observations: bool = False
    """normalize observations to mean 0 and standard deviation 1, by running statistics"""
    normalize_rewards: bool = False
    """divide rewards by the running standard deviation of discounted returns"""
    scale_observations: bool = False
    """scale observations to [-1, 1], by the bounds of the environment's observation_spec"""
    actions: Literal["scale", "clip"] = "scale"
    """continuous actions beyond the environment's bounds are clipped for the environment,
    not for the learner; scale also maps [-1, 1] to the bounds"""
