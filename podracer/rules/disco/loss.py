"""Disco103's loss: from the meta-network's targets to the agent's predictions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.agent import Metrics
from podracer.networks.action_model import Predictions
from podracer.networks.policies import Categorical, masked
from podracer.rules.disco.steps import Steps
from podracer.rules.disco.values import of_action, two_hot

COSTS = {"policy": 1.0, "y": 1.0, "z": 1.0, "next_policy": 1.0, "q": 0.2}


class Targets(NamedTuple):
    """Constants of the loss."""

    policy: Categorical  # [T, B]
    y: Categorical  # [T, B] over 600 classes
    z: Categorical  # [T, B] over 600 classes, of the action taken
    next_policy: Categorical  # [T, B] the online policy after the transition
    returns: jax.Array  # [T, B] of the action taken
    transitions: Steps
    learned: jax.Array  # [] share of transitions learned from, over all cores


def terms(
    targets: Targets, predictions: Predictions, action: jax.Array
) -> dict[str, jax.Array]:
    """The parts of the loss [T, B] by name, neither weighted nor masked.

    Args:
      targets: of the rule.
      predictions: [T + 1, B]
      action: [T, B]
    """
    policy, y, z, q, next_policy = jax.tree.map(lambda x: x[:-1], predictions)
    z, q, next_policy = (of_action(x, action) for x in (z, q, next_policy))
    next_error = targets.next_policy.kl(Categorical(next_policy))
    bins = two_hot(targets.returns)
    # The rule knows of no mask: what it gives to a forbidden action is left out.
    allowed = {"": policy.logits > -jnp.inf}
    return {
        "policy": masked(targets.policy, allowed).kl(policy),
        "y": targets.y.kl(Categorical(y)),
        "z": targets.z.kl(Categorical(z)),
        "next_policy": jnp.where(targets.transitions.ends, 0.0, next_error),
        "q": -jnp.sum(bins * jax.nn.log_softmax(q), -1),
    }


def loss(
    targets: Targets, predictions: Predictions, action: jax.Array
) -> tuple[jax.Array, Metrics]:
    """(loss of one core, its parts).

    The loss is a mean over the transitions learned from on all cores. The parts are means
    over all time and batch, as in the reference.
    """
    parts = terms(targets, predictions, action)
    per_step = sum(COSTS[name] * part for name, part in parts.items())
    # N cores then compute what one does; the reference divides by each core's own count.
    size = jnp.float32(per_step.size)
    total = jnp.sum(targets.transitions.mask * per_step) / (
        targets.learned * size + 1e-8
    )
    metrics = {f"loss/{name}": jnp.mean(part) for name, part in parts.items()}
    return total, metrics | {"loss/total": total}
