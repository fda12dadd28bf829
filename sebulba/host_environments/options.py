"""Options of environments in worker processes, and the JSON in such options."""

import dataclasses
import json
from typing import Any

from podracer.errors import UserError, check_at_least_one, check_range

MOST_THREADS = 1_024  # of a pool; C++ aborts where the system has no more
LONGEST = 1e6  # seconds; poll(2) counts milliseconds in 32 bits


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of an environment in worker processes."""

    arguments: str = "{}"
    """keyword arguments of the environment, as JSON: '{"size": 5}'"""
    max_episode_steps: int | None = None
    """environment steps before an episode is truncated; default: the environment's own"""
    frame_stack: int = 1
    """number of images that the agent sees at once: of a tree of observations its images are
    stacked, of others the only array (gym:, dm:)"""
    action_mask: bool = False
    """observations have a field action_mask, from the environment's `info["action_mask"]` or
    its method `action_masks` (gym:): forbidden actions are not taken"""
    check_bounds: bool = True
    """stop where an observation is outside of its declared bounds"""
    step_seconds: float = 60.0
    """time limit of a step; a worker process that exceeds it is replaced"""
    start_seconds: float = 300.0
    """time limit of starting the worker processes, and of resetting"""

    def __post_init__(self):
        check_range("step_seconds", self.step_seconds, 0.001, LONGEST)
        check_range("start_seconds", self.start_seconds, 0.001, LONGEST)
        check_at_least_one(
            max_episode_steps=self.max_episode_steps, frame_stack=self.frame_stack
        )
        json_object("arguments", self.arguments)


def check_threads(threads: int | None) -> None:
    """Raises UserError for an impossible number of threads of a pool; None passes."""
    if threads is not None:
        check_range("env_threads", threads, 1, MOST_THREADS)


def json_object(field: str, text: str) -> dict[str, Any]:
    """The JSON object of a command-line flag. Raises UserError."""
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    except (ValueError, RecursionError):
        pass
    raise UserError(
        f"{field} is {text!r}; it takes a JSON object: "
        f"""--env.{field} '{{"size": 5}}'"""
    )
