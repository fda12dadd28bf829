"""Networks: torso, memory and heads behind the four functions of `Network`."""

from podracer.networks.building import (
    actor_critic,
    build,
    with_heads,
)
from podracer.networks.modules import Branch, Config
from podracer.networks.network import (
    Network,
    Predictions,
    last_predictions,
    memory_after,
    of_modules,
)

__all__ = [
    "Branch",
    "Config",
    "Network",
    "Predictions",
    "actor_critic",
    "build",
    "last_predictions",
    "memory_after",
    "of_modules",
    "with_heads",
]
