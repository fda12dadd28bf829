"""LPG: a learned policy gradient (Oh et al. 2020, arXiv:2007.08794).

The rule is a network that never sees observations or which action was taken, so it works in
any environment with discrete actions. It reads a trajectory backward in time and gives a
target for the policy and one for a prediction vector y, whose meaning was learned.

To the rule, a truncated episode looks like a trajectory that ends there: memory is
reset, but d_t is 0 and the prediction of the last observation is seen, so that a rule
may bootstrap from it.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from podracer.agent import Trajectory
from podracer.errors import UserError, check_ranges
from podracer.learning import losses
from podracer.networks.policies import Categorical
from podracer.rules.rule import Experience, Rule

MOST = 10**9  # of a size: JAX counts a layer's units with 32 bits


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The architecture of the rule's network; the defaults are the paper's."""

    prediction_size: int = 30
    """number m of categories of the prediction vector y"""
    memory_size: int = 256
    """number of units of the LSTM"""
    embedding_size: int = 16
    """number of hidden units of the embedding of y"""

    def __post_init__(self):
        check_ranges(self, 1, MOST, *dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Config:
    """What an agent chooses of the rule's use."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step, which the rule reads"""
    alpha_y: float = 0.5
    """weight of the KL divergence of the prediction vector from its target"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "none"
    """clipping of the rewards that the rule reads"""

    def __post_init__(self):
        check_ranges(self, 0.0, 1.0, "discount_factor")
        check_ranges(self, 0.0, math.inf, "alpha_y")


class Predictions(NamedTuple):
    """What an agent's network predicts for timesteps [...]."""

    policy: Categorical  # [...] over A actions
    y: Categorical  # [...] over m categories


class Targets(NamedTuple):
    """The rule's outputs, constants of the agent's loss."""

    pi_hat: jax.Array  # [T, B]
    y_hat: Categorical  # [T, B] over m categories


class UpdateNetwork(nn.Module):
    """U_eta of the paper, section 3.2.

    (inputs [T, B, 4], y_tm1 and y_t [T, B, m], ended and mask [T, B]) -> Targets.
    """

    sizes: Sizes

    @nn.compact
    def __call__(self, inputs, y_tm1, y_t, ended, mask):
        hidden = nn.Dense(self.sizes.embedding_size, name="embedding")
        output = nn.Dense(1, name="embedding_output")
        before, after = (output(nn.relu(hidden(y))) for y in (y_tm1, y_t))
        after = jnp.where(ended[..., None], 0.0, after)  # nothing follows
        x = jnp.concatenate([inputs, before, after], -1)  # [T, B, 6]

        def step(cell, memory, row):
            x, mask = row
            memory, features = cell(memory, x)
            # A void transition follows every episode's end: it leaves no memory to it.
            memory = jax.tree.map(lambda m: mask[:, None] * m, memory)
            return memory, features

        backward = nn.scan(
            step,
            variable_broadcast="params",
            split_rngs={"params": False},
            reverse=True,
        )
        cell = nn.OptimizedLSTMCell(self.sizes.memory_size, name="lstm")
        memory = cell.initialize_carry(jax.random.key(0), x.shape[1:])  # zeros
        memory = jax.tree.map(lambda m: m.astype(x.dtype), memory)
        _, features = backward(cell, memory, (x, mask))
        features = nn.relu(features)
        pi_hat = nn.Dense(1, name="pi_hat")(features)[..., 0]
        y_hat = nn.Dense(self.sizes.prediction_size, name="y_hat")(features)
        return Targets(pi_hat, Categorical(y_hat))


def make_rule(config: Config, sizes: Sizes = Sizes()) -> Rule:
    """The rule for agents that predict `Predictions`.

    Its metrics `rule/pi_hat_square` and `rule/y_hat_square`, the mean squared norms of its
    targets, are differentiable in the weights: a meta-objective regularizes them.
    """
    network = UpdateNetwork(sizes)

    def init(key):
        row = jnp.zeros((1, 1))
        y = jnp.zeros((1, 1, sizes.prediction_size))
        return network.init(key, jnp.zeros((1, 1, 4)), y, y, row > 0, row)

    def targets(weights, state, experience: Experience):
        policy, y = check_predictions(experience.predictions, sizes)
        trajectory = experience.trajectory
        reward, discount, mask = losses.make_transitions(trajectory.timesteps, 1.0)
        reward = losses.clip_reward(reward, config.reward_clipping)
        probability = jnp.exp(
            Categorical(policy.logits[:-1]).log_prob(trajectory.outputs.action)
        )
        agents = jnp.ones_like(reward) * config.discount_factor
        inputs = jnp.stack([reward, 1.0 - discount, agents, probability], -1)
        y = jax.nn.softmax(y.logits)
        results = network.apply(weights, inputs, y[:-1], y[1:], discount == 0.0, mask)
        y_hat = jnp.sum(jnp.square(jax.nn.softmax(results.y_hat.logits)), -1)
        metrics = {
            "rule/pi_hat_square": jnp.mean(mask * jnp.square(results.pi_hat)),
            "rule/y_hat_square": jnp.mean(mask * y_hat),
        }
        return results, state, metrics

    def loss(targets: Targets, predictions: Predictions, trajectory: Trajectory):
        """Its negative gradient is the paper's equation 2, averaged over [T, B]."""
        policy, y = jax.tree.map(lambda x: x[:-1], predictions)
        mask = losses.make_transitions(trajectory.timesteps, 1.0).mask
        terms = {
            "policy": -targets.pi_hat * policy.log_prob(trajectory.outputs.action),
            "prediction": y.kl(targets.y_hat),
            "entropy": -policy.entropy(),
            "prediction_entropy": -y.entropy(),
        }
        terms["total"] = terms["policy"] + config.alpha_y * terms["prediction"]
        metrics = {f"loss/{name}": jnp.mean(mask * x) for name, x in terms.items()}
        return metrics["loss/total"], metrics

    return Rule(init, lambda params: (), targets, loss)


def check_predictions(predictions: Predictions, sizes: Sizes) -> Predictions:
    """Raises UserError for predictions that the rule cannot read."""
    if not isinstance(predictions, Predictions):
        raise UserError(
            f"the network predicts {type(predictions).__name__}; LPG needs "
            "podracer.rules.lpg.Predictions: use agents.lpg.make_network"
        )
    check_prediction_size(predictions.y.logits.shape[-1], sizes)
    return predictions


def check_prediction_size(size: int, sizes: Sizes) -> None:
    """Raises UserError where a network predicts another number of categories."""
    if size != sizes.prediction_size:
        raise UserError(
            f"prediction_size is {size}, but the rule has {sizes.prediction_size} "
            f"categories: --network.prediction-size {sizes.prediction_size}"
        )
