"""MuZero (Schrittwieser et al. 2020, arXiv:1911.08265): acting is searching in a model.

The search is mctx's; `gumbel` is the one of Danihelka et al. 2022 (openreview bERaNdoegnO),
which needs fewer simulations. A time limit is not a termination: returns are bootstrapped
from the value that the search finds at the last observation.

Actions are discrete, networks have no memory. Where an observation is a dictionary or a
NamedTuple with a field `action_mask` [A], True for the actions that are allowed, the others
are neither searched at the root nor taken.

Nothing here is drawn on the learner, so N cores compute what one core computes, up to rounding.
"""

from podracer.agents.muzero.agent import make_agent
from podracer.agents.muzero.config import Config
from podracer.agents.muzero.presets import PRESETS
from podracer.networks.world_model import make_model as make_network

__all__ = ["METRICS", "OFF_POLICY", "PRESETS", "Config", "make_agent", "make_network"]

OFF_POLICY = True  # the search's policies and values may be stale: replay may be used

# (unit, meaning) of each
METRICS = {
    "loss/value": ("nat", "mean cross-entropy of predicted values per step"),
    "loss/reward": ("nat", "mean cross-entropy of predicted rewards per step"),
    "max_return": (
        "reward",
        "largest absolute reward and value target on a core, mean over updates and cores",
    ),
    "temperature": ("", "temperature of the visit counts when acting"),
}
