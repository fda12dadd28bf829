"""What Disco103's meta-network sees: a vector for each transition, of 27 numbers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer.imports import rlax
from podracer.networks.action_model import Predictions
from podracer.rules.disco.steps import Steps
from podracer.rules.disco.values import Values, of_action
from podracer.rules.disco.weights import Encoder, Linear


class Probabilities(NamedTuple):
    """A network's predictions as probabilities."""

    policy: jax.Array  # [T + 1, B, A]
    y: jax.Array  # [T + 1, B, 600]
    z: jax.Array  # [T + 1, B, A, 600]


class Inputs(NamedTuple):
    """What vectors are made of."""

    online: Probabilities
    target: Probabilities
    behaviour: jax.Array  # [T, B, A] probabilities
    action: jax.Array  # [T, B]
    transitions: Steps
    values: Values
    normalized: jax.Array  # [T, B] advantages
    normalized_actions: jax.Array  # [T + 1, B, A] those of all actions


class Encoded(NamedTuple):
    """What an encoder makes of a trajectory."""

    x: jax.Array  # [T, B, 27]
    actions: jax.Array  # [T, B, A, 2]


def probabilities(predictions: Predictions) -> Probabilities:
    logits = predictions.policy.logits, predictions.y, predictions.z
    return Probabilities(*map(jax.nn.softmax, logits))


def encode(encoder: Encoder, inputs: Inputs) -> Encoded:
    """The vectors of all transitions, and those of all actions in them."""
    online, target, behaviour, action, transitions, values, normalized, _ = inputs
    log = rlax.signed_logp1
    z, z_target = (network(encoder.z, x.z)[..., 0] for x in (online, target))
    actions = of_actions(inputs, z, z_target)
    for layer in encoder.actions:
        actions = block(layer, actions)

    def pair(x):
        return [x[:-1], x[1:]]

    def of_state(x):  # mean by the online policy, and maximum
        return [*pair(jnp.sum(online.policy * x, -1)), *pair(jnp.max(x, -1))]

    columns = [
        of_action(online.policy[:-1], action),
        of_action(behaviour, action),
        log(transitions.reward),
        transitions.discount,
        *pair(log(values.v)),
        log(values.advantage),
        normalized,
        of_action(target.policy[:-1], action),
        *pair(network(encoder.y, online.y)[..., 0]),
        *pair(network(encoder.y, target.y)[..., 0]),
        of_action(z[:-1], action),
        *of_state(z),
        of_action(z_target[:-1], action),
        *of_state(z_target),
    ]
    embeddings = jnp.mean(actions, 2), of_action(actions, action)
    return Encoded(jnp.concatenate([jnp.stack(columns, -1), *embeddings], -1), actions)


def of_actions(inputs: Inputs, z: jax.Array, z_target: jax.Array) -> jax.Array:
    """What an encoder sees of every action: [T, B, A, 9].

    Args:
      inputs: of the encoder.
      z: [T + 1, B, A] what its own network makes of z.
      z_target: the same of the target network's.
    """
    num_actions = z.shape[-1]
    rows = [
        inputs.online.policy,
        inputs.target.policy,
        z,
        z_target,
        rlax.signed_logp1(inputs.values.q_target),
        rlax.signed_logp1(inputs.values.action_advantage),
        inputs.normalized_actions,
    ]
    rows = [x[:-1] for x in rows]
    rows.insert(1, inputs.behaviour)
    return jnp.stack([*rows, jax.nn.one_hot(inputs.action, num_actions)], -1)


def linear(layer: Linear, x: jax.Array) -> jax.Array:
    """x [..., I] -> [..., O]"""
    y = x @ layer.w
    return y + jnp.broadcast_to(layer.b, y.shape)


def network(layers: tuple[Linear, Linear], x: Any) -> jax.Array:
    """Two layers with a ReLU in the middle."""
    return linear(layers[1], jax.nn.relu(linear(layers[0], x)))


def block(layer: Linear, x: jax.Array) -> jax.Array:
    """[T, B, A, I] -> [T, B, A, O], the same for every action and order of actions."""
    mean = jnp.broadcast_to(jnp.mean(x, 2, keepdims=True), x.shape)
    return jax.nn.relu(linear(layer, jnp.concatenate([x, mean], -1)))
