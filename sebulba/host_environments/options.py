"""What can be set in an environment that worker processes step."""

import dataclasses
import json
from typing import Any

from podracer.errors import UserError, check_at_least_one, check_range


@dataclasses.dataclass(frozen=True)
class Options:
    """Of any Python environment."""

    arguments: str = "{}"
    """keyword arguments that make it, as JSON: '{"size": 5}'"""
    max_episode_steps: int | None = None
    """environment steps after which an episode is cut off; by default its own"""
    step_seconds: float = 60.0
    """that a step may take before its worker process is replaced"""
    start_seconds: float = 300.0
    """that worker processes may take to start, and environments to reset"""

    def __post_init__(self):
        check_range("step_seconds", self.step_seconds, 0.001)
        check_range("start_seconds", self.start_seconds, 0.001)
        if self.max_episode_steps is not None:
            check_at_least_one(max_episode_steps=self.max_episode_steps)


def json_object(field: str, text: str) -> dict[str, Any]:
    """The JSON object of a flag; UserError where it is none."""
    try:
        given = json.loads(text)
        if isinstance(given, dict):
            return given
    except ValueError:
        pass
    raise UserError(
        f"{field} is {text!r}; it takes a JSON object: "
        f"""--env.{field} '{{"size": 5}}'"""
    )
