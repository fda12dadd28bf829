"""Networks: torso, memory and heads behind the four functions of `Network`."""

from podracer.networks.building import CACHE, SAMPLES, actor_critic, with_torso
from podracer.networks.modules import Config
from podracer.networks.network import Network, Predictions

__all__ = [
    "CACHE",
    "SAMPLES",
    "Config",
    "Network",
    "Predictions",
    "actor_critic",
    "with_torso",
]
