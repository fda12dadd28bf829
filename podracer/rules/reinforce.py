"""REINFORCE with a baseline (Williams 1992, doi:10.1007/BF00992696) as an update rule."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.agent import Trajectory
from podracer.errors import check_ranges
from podracer.learning import losses
from podracer.networks import Predictions
from podracer.parallel import AVERAGE, Average
from podracer.rules.rule import Experience, Rule


@dataclasses.dataclass(frozen=True)
class Config:
    """The rule's hyperparameters."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step"""
    value_cost: float = 0.5
    """weight of half the squared value error"""

    def __post_init__(self):
        check_ranges(self, 0.0, 1.0, "discount_factor")
        check_ranges(self, 0.0, math.inf, "value_cost")


class Targets(NamedTuple):
    """Constants of the loss; 0 where the transition is void."""

    advantage: jax.Array  # [T, B] return minus value
    value: jax.Array  # [T, B] the return: up to the episode's end, else bootstrapped


def make_rule(config: Config, average: Average = AVERAGE) -> Rule:
    """REINFORCE with a baseline, for networks that predict `networks.Predictions`.

    A trajectory that ends within an episode, and a truncated episode, are bootstrapped from
    the value of their last observation.
    """

    def targets(weights, state, experience: Experience):
        value = experience.predictions.value
        transitions = losses.make_transitions(
            experience.trajectory.timesteps, config.discount_factor
        )
        advantage = losses.gae(value, transitions, lambda_=1.0)
        return (
            Targets(advantage, transitions.mask * (advantage + value[:-1])),
            state,
            {},
        )

    def loss(targets: Targets, predictions: Predictions, trajectory: Trajectory):
        policy, value = jax.tree.map(lambda x: x[:-1], predictions)
        transitions = losses.make_transitions(
            trajectory.timesteps, config.discount_factor
        )
        terms = {
            "policy": -targets.advantage * policy.log_prob(trajectory.outputs.action),
            "value": 0.5 * jnp.square(transitions.mask * value - targets.value),
        }
        terms["total"] = terms["policy"] + config.value_cost * terms["value"]
        metrics = {f"loss/{name}": jnp.mean(term) for name, term in terms.items()}
        return metrics["loss/total"], metrics

    return Rule(lambda key: (), lambda params: (), targets, loss)
