"""MuZero's hyperparameters."""

import dataclasses
import math
from typing import Literal

from podracer.errors import check_at_least_one, check_range, check_ranges


@dataclasses.dataclass(frozen=True)
class Config:
    """MuZero's hyperparameters."""

    policy: Literal["muzero", "gumbel"] = "muzero"
    """how the search chooses actions: by visit counts, or by sequential halving (gumbel)"""
    num_simulations: int = 16
    """number of simulations of a search, each one call of the model"""
    max_depth: int | None = None
    """largest depth of the search tree; None: no limit"""
    least_range: float = 0.3
    """range of a node's action values up to which they are not stretched to [0, 1]; if
    small, the noise of an untrained model decides where rewards are rare"""
    discount_factor: float = 0.997
    """the agent's gamma, per environment step"""
    unroll_steps: int = 5
    """K, steps that the model is unrolled and trained for"""
    return_steps: int = 10
    """n, rewards in a value target before the value of the search"""
    temperatures: tuple[float, ...] = (1.0, 0.5, 0.25)
    """temperatures of the visit counts: from the start of the run, from 1/2 of total_steps,
    from 3/4, from 7/8, ... (policy muzero)"""
    dirichlet_fraction: float = 0.25
    """share of noise in the root's prior policy (policy muzero)"""
    dirichlet_alpha: float = 0.3
    """concentration of that noise: small numbers favour few actions"""
    considered_actions: int = 16
    """largest number of actions that the root considers (policy gumbel)"""
    reanalyse: bool = False
    """search every observation again with the learner's parameters before learning from it,
    which makes the policies and values of stale trajectories new"""
    learning_rate: float = 1e-3
    """learning rate at the first update, of Adam"""
    decay_learning_rate: bool = True
    """decay the learning rate linearly, to 0 at total_steps"""
    total_steps: int | None = None
    """environment steps of the run (the command's --total-steps); None: no decay, and the
    first temperature"""
    value_cost: float = 0.25
    """weight of the value's cross-entropy"""
    reward_cost: float = 1.0
    """weight of the reward's cross-entropy"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "none"
    """clipping of the rewards that the learner sees"""
    weight_decay: float = 1e-4
    """decay of all parameters, times the learning rate"""
    max_gradient_norm: float = 5.0
    """global norm to which larger gradients are scaled down"""
    adam_epsilon: float = 1e-8
    """added to Adam's root"""

    def __post_init__(self):
        names = "num_simulations", "unroll_steps", "return_steps", "considered_actions"
        check_at_least_one(**{x: getattr(self, x) for x in (*names, "max_depth")})
        costs = "learning_rate", "value_cost", "reward_cost", "weight_decay"
        limits = "max_gradient_norm", "adam_epsilon"
        check_ranges(self, 0.0, 1.0, "discount_factor", "dirichlet_fraction")
        check_ranges(self, 0.0, math.inf, *costs, *limits)
        check_range("dirichlet_alpha", self.dirichlet_alpha, 1e-6)
        check_range("least_range", self.least_range, 1e-8)
        check_at_least_one(**{"temperatures' length": len(self.temperatures)})
        for i, temperature in enumerate(self.temperatures):
            check_range(f"temperatures[{i}]", temperature, 0.0)
