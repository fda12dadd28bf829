"""BatchPPO, the agent of TensorFlow Agents (Hafner et al. 2017, arXiv:1709.02878).

PPO with a KL penalty instead of clipped ratios, over whole episodes: once every core has
enough of them, all cores take the same steps, each on its own episodes. Observations and
rewards are normalized by running statistics.

Two differences from the other agents. An update takes the episodes that finished first on
each core, and each core shuffles its own chunks: N cores compute what one core computes, up
to rounding, only if all episodes have one length and are not cut into chunks. And all
presets but `mujoco` take a time limit for a termination, as the original does; see
`bootstrap_on_truncation`.
"""

from podracer.agents.batch_ppo.agent import make_agent
from podracer.agents.batch_ppo.config import Config, upgraded
from podracer.agents.batch_ppo.presets import PRESETS, RENAMED

__all__ = ["METRICS", "PRESETS", "RENAMED", "Config", "make_agent", "upgraded"]

# (unit, meaning) of each
METRICS = {
    "kl_penalty": ("", "weight of the KL divergence in the loss"),
    "episodes_waiting": (
        "episodes",
        "finished episodes not yet learned from, per core",
    ),
    "episodes_dropped": (
        "episodes",
        "episodes dropped for lack of space, per trajectory and core",
    ),
    "max_episode_length": (
        "environment steps",
        "capacity of the agent's episode memory",
    ),
}
