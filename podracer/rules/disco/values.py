"""The hand-made part of Disco103: action values, Retrace targets and advantages."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer.imports import rlax
from podracer.networks.action_model import NUM_BINS, Predictions
from podracer.rules.disco.steps import Steps

LARGEST = 300.0  # bin of a transformed value
DECAY = 0.99  # of the moments, per update


class Moments(NamedTuple):
    """Running mean and mean square, biased towards their start at 0, all float32 []."""

    mean: jax.Array
    mean_square: jax.Array
    bias: jax.Array  # DECAY to the power of the number of updates


class Values(NamedTuple):
    """Values and advantages of a trajectory; the target network's have the suffix."""

    v: jax.Array  # [T + 1, B]
    v_target: jax.Array  # [T + 1, B] of the online policy in the target network's q
    q: jax.Array  # [T + 1, B, A]
    q_target: jax.Array  # [T + 1, B, A]
    rho: jax.Array  # [T, B] online over behaviour probability of the action taken
    returns: jax.Array  # [T, B] Retrace targets
    advantage: jax.Array  # [T, B] returns minus v_target
    action_advantage: jax.Array  # [T + 1, B, A] q_target minus v_target
    error: jax.Array  # [T, B] returns minus q of the action taken


def no_moments() -> Moments:
    """Before the first update."""
    return Moments(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(1.0))


def updated(moments: Moments, mean: jax.Array, mean_square: jax.Array) -> Moments:
    """The moments after an update whose samples have this mean and mean square."""
    return Moments(
        DECAY * moments.mean + (1.0 - DECAY) * mean,
        DECAY * moments.mean_square + (1.0 - DECAY) * mean_square,
        DECAY * moments.bias,
    )


def scale(moments: Moments) -> tuple[jax.Array, jax.Array]:
    """(mean, divisor), unbiased: what `normalize` subtracts and divides by."""
    mean = moments.mean / (1.0 - moments.bias)
    square = moments.mean_square / (1.0 - moments.bias)
    variance = jnp.maximum(0.0, square - jnp.square(mean))
    return mean, jnp.sqrt(variance + 1e-12) + 1e-6


def normalize(moments: Moments, x: jax.Array) -> jax.Array:
    """x in standard deviations from the mean."""
    mean, divisor = scale(moments)
    return (x - mean) / divisor


def evaluate(
    predictions: Predictions,
    target_predictions: Predictions,
    behaviour: Any,
    action: jax.Array,
    transitions: Steps,
    discount_factor: float,
    lambda_: float,
) -> Values:
    """The values of a trajectory and its Retrace targets (arXiv:1606.02647).

    Args:
      predictions: [T + 1, B] of the online network.
      target_predictions: [T + 1, B] of the target network.
      behaviour: the policy [T, B] that acted.
      action: [T, B]
      transitions: of the trajectory.
      discount_factor: the agent's gamma, per environment step.
      lambda_: factor of the traces.
    """
    pi = jax.nn.softmax(predictions.policy.logits)
    q, q_target = action_values(predictions.q), action_values(target_predictions.q)
    v, v_target = (jnp.sum(pi * x, -1) for x in (q, q_target))
    online = jax.tree.map(lambda x: x[:-1], predictions.policy)
    rho = jnp.exp(online.log_prob(action) - behaviour.log_prob(action))
    trace = transitions.real * lambda_ * jnp.minimum(1.0, rho)
    retrace = jax.vmap(
        rlax.general_off_policy_returns_from_q_and_v, in_axes=1, out_axes=1
    )
    returns = retrace(
        of_action(q_target[:-1], action)[1:],
        v_target[1:],
        transitions.reward,
        discount_factor * transitions.discount,
        trace[1:],
    )
    return Values(
        v,
        v_target,
        q,
        q_target,
        rho,
        returns,
        returns - v_target[:-1],
        q_target - v_target[..., None],
        returns - of_action(q[:-1], action),
    )


def action_values(logits: jax.Array) -> jax.Array:
    """The values [...] that categorical predictions [..., 601] of q stand for."""
    # The TPU's compiler crashes where it fuses this with the layer that the logits are of.
    logits = jax.lax.optimization_barrier(logits)
    bins = jnp.linspace(-LARGEST, LARGEST, NUM_BINS)
    bins = bins.reshape(*(1,) * (logits.ndim - 1), NUM_BINS)
    return rlax.signed_parabolic(jnp.sum(jax.nn.softmax(logits) * bins, -1))


def two_hot(values: jax.Array) -> jax.Array:
    """Probabilities [..., 601] of q that stand for values [...]."""
    return rlax.transform_to_2hot(
        rlax.signed_hyperbolic(values), -LARGEST, LARGEST, NUM_BINS
    )


def of_action(x: jax.Array, action: jax.Array) -> jax.Array:
    """x [T, B, A, ...] for the actions [T, B] taken: [T, B, ...]."""
    # A sum over a mask: the gradient of an index is a scatter, which is slow.
    taken = jax.nn.one_hot(action, x.shape[2], dtype=bool)
    taken = taken.reshape(*taken.shape, *(1,) * (x.ndim - 3))
    return jnp.sum(jnp.where(taken, x, 0.0), axis=2)
