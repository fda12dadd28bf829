"""How good a lifetime's agent has become, differentiable in its rule (arXiv:2007.08794).

Equation 5 of the paper: the policy gradient of the agent after its K updates, on a new
trajectory, with advantages of a value function that the rule never sees, and regularizers
against policies, predictions and targets that become extreme.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from podracer.agent import Metrics, Trajectory
from podracer.errors import check_ranges
from podracer.learning import losses
from podracer.parallel import Average


@dataclasses.dataclass(frozen=True)
class Config:
    """Weights of the meta-objective; the defaults are the paper's."""

    policy_entropy: float = 0.01
    """weight of the policy's entropy (beta_0 of the paper)"""
    prediction_entropy: float = 0.001
    """weight of the prediction vector's entropy (beta_1)"""
    policy_target: float = 0.001
    """weight of the squared norm of the policy's targets (beta_2)"""
    prediction_target: float = 0.001
    """weight of the squared norm of the prediction vector's targets (beta_3)"""
    trace_decay: float = 0.95
    """lambda of the generalized advantages of the hidden value function"""

    def __post_init__(self):
        check_ranges(self, 0.0, 1.0, "trace_decay")
        weights = {x.name for x in dataclasses.fields(self)} - {"trace_decay"}
        check_ranges(self, 0.0, math.inf, *sorted(weights))


def make_objective(config: Config) -> Callable:
    """(predictions [T + 1, B], trajectory, advantages [T, B], updates) -> (objective, metrics).

    For rules whose agents predict `policy` and `y`, and which report the squared norms of
    their targets, as LPG does. `updates` are the metrics [K] of the updates before.
    Advantages are standardized, and all terms are means over [T, B].
    """

    def objective(
        predictions: Any,
        trajectory: Trajectory,
        advantages: jax.Array,
        updates: Metrics,
    ) -> tuple[jax.Array, Metrics]:
        mask = losses.make_transitions(trajectory.timesteps, 1.0).mask
        predictions = jax.tree.map(lambda x: x[:-1], predictions)
        alone = Average(None)
        advantages = losses.standardize(advantages, mask, alone)
        log_prob = predictions.policy.log_prob(trajectory.outputs.action)

        def mean(x):
            return jnp.sum(mask * x) / jnp.maximum(jnp.sum(mask), 1e-8)

        terms = {
            "meta/policy": mean(jax.lax.stop_gradient(advantages) * log_prob),
            "meta/entropy": mean(predictions.policy.entropy()),
            "meta/prediction_entropy": mean(predictions.y.entropy()),
        }
        total = (
            terms["meta/policy"]
            + config.policy_entropy * terms["meta/entropy"]
            + config.prediction_entropy * terms["meta/prediction_entropy"]
            - config.policy_target * jnp.mean(updates["rule/pi_hat_square"])
            - config.prediction_target * jnp.mean(updates["rule/y_hat_square"])
        )
        return total, terms | {"meta/objective": total}

    return objective
