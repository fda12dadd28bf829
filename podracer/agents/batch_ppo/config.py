"""BatchPPO's hyperparameters."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from podracer.errors import UserError, check_at_least_one, check_ranges


@dataclasses.dataclass(frozen=True)
class Config:
    """BatchPPO's hyperparameters; the defaults are those of the original's last version.

    Four quirks of the original have switches. By default a time limit counts as a
    termination, as it does there; see `bootstrap_on_truncation`.
    """

    episodes_per_update: int = 30
    """finished episodes per update, over all cores (rounded up to equal shares)"""
    max_episode_length: int = 1000
    """longest episode, in environment steps; longer ones stop the run"""
    discount_factor: float = 0.995
    """the agent's gamma, per environment step"""
    gae_lambda: float | None = None
    """lambda of generalized advantage estimation; None: returns minus values"""
    learning_rate: float = 1e-4
    """Adam's learning rate"""
    value_learning_rate: float | None = None
    """learning rate of the value's own parameters; None: learning_rate"""
    epochs: int = 25
    """passes over the episodes of an update"""
    chunk_length: int | None = None
    """environment steps of the chunks that episodes are cut into; None: whole episodes"""
    chunks_per_step: int = 20
    """chunks per core and step of Adam, fewer where short episodes make no more; without
    chunk_length a step takes all episodes"""
    kl_target: float = 0.01
    """KL(behaviour, target policy) aimed at after an update"""
    kl_penalty: float = 1.0
    """initial weight of the KL penalty; multiplied or divided by 1.5 to reach kl_target"""
    kl_cutoff_factor: float = 2.0
    """multiple of kl_target beyond which the squared excess is penalized too"""
    kl_cutoff_cost: float = 1000.0
    """weight of that squared excess"""
    entropy_cost: float = 0.0
    """weight of the entropy bonus"""
    observation_clip: float = 5.0
    """limit of normalized observations, in standard deviations"""
    reward_clip: float = 10.0
    """limit of normalized rewards, in standard deviations"""
    bootstrap_on_truncation: bool = False
    """bootstrap from the value at a time limit; the original takes it for a termination"""
    padding_in_advantages: bool = True
    """(quirk of the original) normalize advantages with the moments of the padding, too"""
    padding_in_bootstrap: bool = True
    """(quirk) with gae_lambda, bootstrap past an episode's end from the row after it;
    without effect with bootstrap_on_truncation, which it would undo"""
    kl_over_max_length: bool = True
    """(quirk) divide sums over an episode by max_episode_length, not by its length"""
    truncate_chunk_returns: bool = False
    """(quirk) with chunk_length, fit values to returns that stop at the chunk's end, as the
    original does, instead of the whole episode's"""
    total_steps: int | None = None
    """environment steps of the run; not used by this agent"""

    def __post_init__(self):
        check_ranges(self, 0.0, 1.0, "discount_factor", "gae_lambda")
        check_ranges(
            self,
            0.0,
            math.inf,
            "learning_rate",
            "value_learning_rate",
            "kl_target",
            "kl_penalty",
            "kl_cutoff_factor",
            "kl_cutoff_cost",
            "entropy_cost",
            "observation_clip",
            "reward_clip",
        )
        names = "episodes_per_update", "max_episode_length", "epochs", "chunks_per_step"
        check_at_least_one(**{name: getattr(self, name) for name in names})
        if self.chunk_length is not None:
            check_at_least_one(chunk_length=self.chunk_length)
            if self.max_episode_length % self.chunk_length:
                raise UserError(
                    f"chunk_length is {self.chunk_length}, which does not divide "
                    f"max_episode_length {self.max_episode_length}: choose a divisor"
                )


def upgraded(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields in a config.json as of today: a value_learning_rate of 0 once meant None,
    before there was a truncate_chunk_returns."""
    old = "truncate_chunk_returns" not in values
    if old and values.get("value_learning_rate") == 0:
        return {**values, "value_learning_rate": None}
    return values
