"""The network of Disco103: a policy, and predictions for a state and for each action.

Oh et al. 2025, doi:10.1038/s41586-025-09761-x. Torso and memory are any of ours; the reference's
are an MLP whose last layer is linear, here `embedding_size`.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from dm_env import specs

from podracer import kernels
from podracer.errors import UserError, check_at_least_one
from podracer.networks import heads, modules, torsos
from podracer.networks.building import with_heads
from podracer.networks.masks import forbid_in_policy, mask_network
from podracer.networks.network import Network
from podracer.networks.policies import Categorical

PREDICTION_SIZE = 600  # classes of y and z, which have no meaning of their own
NUM_BINS = 601  # of q: the values -300 to 300 of a transformed action value
HEAD_INIT = nn.initializers.truncated_normal(0.01)


class Predictions(NamedTuple):
    """What the rule reads and trains, for timesteps [...] and A actions."""

    policy: Categorical  # [..., A]
    y: jax.Array  # [..., 600] logits, of the state
    z: jax.Array  # [..., A, 600] logits, of each action
    q: jax.Array  # [..., A, 601] logits of the action value's bins
    # [..., A, A] logits of the policy one step after each action
    next_policy: jax.Array


@dataclasses.dataclass(frozen=True)
class Config(modules.Config):
    """A torso, a memory and the heads of Disco103; the defaults are the reference's."""

    hidden_sizes: tuple[int, ...] = (512,)
    """number of units in each layer of an mlp torso"""
    init: torsos.Init = "truncated"
    """initial weights of the torso: uniform within +-1/sqrt(fan in) as in PyTorch,
    Glorot's uniform, orthogonal times sqrt(2), or normal with 1/sqrt(fan in), truncated at
    twice that, as in Haiku"""
    embedding_size: int = 512
    """number of units of the linear layer between torso, or memory, and heads"""
    model_size: int = 128
    """number of units of the action model's LSTM"""
    head_size: int = 128
    """number of hidden units in the heads of z, q and the next policy"""

    def __post_init__(self):
        super().__post_init__()
        names = "embedding_size", "model_size", "head_size"
        check_at_least_one(**{name: getattr(self, name) for name in names})
        if self.separate_value:
            raise UserError(
                "separate_value is true, but this network has no value of its own: its "
                "action values share the torso; leave it out"
            )


DEFAULT = Config()


def action_model(
    observation_spec: Any, action_spec: specs.Array, config: Config = DEFAULT
) -> Network:
    """A network that predicts `Predictions`, for an environment with discrete actions.

    Raises UserError for other actions, for a policy head that is not the default, and as
    `networks.actor_critic` does.
    """
    actions = heads.number_of_actions(action_spec, "Disco103")
    heads.check_unused(config.head, "Disco103")

    def predict(features):
        features = dense(config.embedding_size, "embedding")(features)
        policy = dense(actions, "policy_head", HEAD_INIT)(features)
        y = dense(PREDICTION_SIZE, "y_head", HEAD_INIT)(features)
        hidden = OneStep(config.model_size, actions, name="model")(features)

        def head(name: str, size: int) -> jax.Array:
            x = kernels.relu(dense(config.head_size, f"{name}_hidden")(hidden))
            return dense(size, f"{name}_head")(x)

        return Predictions(
            Categorical(policy),
            y,
            z=head("z", PREDICTION_SIZE),
            q=head("q", NUM_BINS),
            next_policy=head("next_policy", actions),
        )

    network = with_heads(observation_spec, config, predict)
    return mask_network(network, action_spec, forbid_in_policy)


class OneStep(nn.Module):
    """One step of an LSTM for each action: features [..., F] -> [..., A, H]."""

    size: int
    num_actions: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        cell = dense(self.size, "root")(features)
        shape = self.num_actions + self.size, 4 * self.size
        kernel = self.param("kernel", torsos.INITS["truncated"], shape)
        bias = self.param("bias", nn.initializers.zeros, shape[1:])
        of_action, of_hidden = jnp.split(kernel, [self.num_actions])
        # The input is the action, one-hot: its product with the kernel is a row of it.
        gates = (jnp.tanh(cell) @ of_hidden)[..., None, :]  # [..., 1, 4 H]
        rows = of_action + bias[None]
        gates += rows.reshape(*(1,) * (gates.ndim - 2), *rows.shape)
        return lstm(gates, cell[..., None, :])[0]


def lstm(gates: jax.Array, cell: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(hidden, cell) [..., H] after a step of an LSTM, as in Haiku.

    Args:
      gates: [..., 4 H] linear in the input and the last hidden vector, in the order
        input, cell, forget, output; 1 is added to the forget gate here.
      cell: [..., H] before the step.
    """
    i, g, f, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def dense(
    features: int,
    name: str,
    init: nn.initializers.Initializer = torsos.INITS["truncated"],
) -> nn.Dense:
    return nn.Dense(features, kernel_init=init, name=name)
