"""Disco103's meta-network: from what it sees of a trajectory to targets for the agent.

An LSTM reads the trajectory backwards in time. A second one, which steps once per update,
modulates it: the agent's lifetime.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.networks.action_model import lstm
from podracer.rules.disco.inputs import Encoded, block, linear, network
from podracer.rules.disco.weights import Lifetime as LifetimeWeights
from podracer.rules.disco.weights import Linear, Weights


class Lifetime(NamedTuple):
    """The state of the LSTM that steps once per update."""

    hidden: jax.Array  # [128]
    cell: jax.Array  # [128]


class Outputs(NamedTuple):
    """What the meta-network says of every transition; y and z of the action taken."""

    logits: jax.Array  # [T, B, A] of the target policy
    y: jax.Array  # [T, B, 600] logits
    z: jax.Array  # [T, B, 600] logits
    embedding: jax.Array  # [T, B, 1] for the lifetime


def newborn() -> Lifetime:
    """At the start of an agent's life."""
    return Lifetime(jnp.zeros(128), jnp.zeros(128))


def predict(
    weights: Weights, lifetime: Lifetime, seen: Encoded, cut: jax.Array
) -> Outputs:
    """The targets of a trajectory.

    Args:
      weights: the meta-network's.
      lifetime: before this update.
      seen: the trajectory, by `weights.encoder`.
      cut: bool [T, B] where what follows the transition is of another episode.
    """
    gate = linear(weights.gate, lifetime.hidden[None])  # [1, 256]
    features = backwards(weights.backward, seen.x, cut) * gate[None]
    spread = jnp.broadcast_to(
        features[:, :, None], (*seen.actions.shape[:3], features.shape[-1])
    )
    actions = block(weights.policy_block, jnp.concatenate([spread, seen.actions], -1))
    return Outputs(
        linear(weights.policy, actions)[..., 0],
        linear(weights.y, features),
        linear(weights.z, features),
        linear(weights.embedding, features),
    )


def backwards(layer: Linear, x: jax.Array, cut: jax.Array) -> jax.Array:
    """Hidden vectors [T, B, 256] of an LSTM over x [T, B, 27] from the last row to the first.

    Its state is set to 0 before the rows in `cut`.
    """
    size = layer.w.shape[1] // 4
    of_x, of_hidden = jnp.split(layer.w, [x.shape[-1]])

    def step(state, row):
        gates, cut = row
        hidden, cell = (jnp.where(cut[:, None], 0.0, s) for s in state)
        state = lstm(gates + hidden @ of_hidden, cell)
        return state, state[0]

    zeros = jnp.zeros((x.shape[1], size), x.dtype)
    rows = linear(Linear(of_x, layer.b), x), cut
    return jax.lax.scan(step, (zeros, zeros), rows, reverse=True)[1]


def live(
    weights: LifetimeWeights,
    lifetime: Lifetime,
    seen: Encoded,
    outputs: Outputs,
    mean: Callable[[jax.Array], jax.Array],
) -> Lifetime:
    """The lifetime after an update.

    Args:
      weights: the lifetime's own.
      lifetime: before the update.
      seen: the trajectory, by `weights.encoder`.
      outputs: of `predict`.
      mean: over time, batch and cores: [T, B, 16] -> [16].
    """
    y = network(weights.encoder.y, jax.nn.softmax(outputs.y))
    x = jnp.concatenate([seen.x, outputs.embedding, y], -1)  # [T, B, 29]
    pooled = mean(linear(weights.pool, x))
    both = jnp.concatenate([pooled, lifetime.hidden])
    return Lifetime(*lstm(linear(weights.lstm, both), lifetime.cell))
