"""Networks: a torso for what is seen, a memory for what was, heads for what to do.

`Network` is the only place that knows about memory: nobody else resets or replays it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
from dm_env import specs

from podracer import torsos
from podracer.agent import Key, PyTree
from podracer.errors import UserError


class Predictions(NamedTuple):
    """What an actor-critic network says of timesteps [...]."""

    logits: jax.Array  # [..., A] of the policy
    value: jax.Array  # [...]


class Network(NamedTuple):
    """A network as pure functions; other networks may predict other pytrees."""

    # (key) -> params
    init: Callable[[Key], PyTree]
    # (batch_size) -> memory [B, ...]
    initial_memory: Callable[[int], PyTree]
    # (params, memory, timestep [B, ...]) -> (memory, predictions [B, ...])
    step: Callable[[PyTree, PyTree, dm_env.TimeStep], tuple[PyTree, Any]]
    # (params, memory before row 0, timesteps [T, B, ...]) -> predictions [T, B, ...]
    unroll: Callable[[PyTree, PyTree, dm_env.TimeStep], Any]


@dataclasses.dataclass(frozen=True)
class Config:
    """An actor-critic network."""

    torso: Literal["mlp", "minatar"] = "mlp"
    """what looks at the observation: layers, or MinAtar's convolution"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """units of each layer of an mlp torso"""
    activation: Literal["relu", "tanh"] = "relu"
    """non-linearity of an mlp torso"""
    separate_value: bool = False
    """give the value a torso and core of its own"""
    memory: Literal["none", "lstm", "gru"] = "none"
    """recurrent core between torso and heads"""
    memory_size: int = 128
    """units of the core"""


def actor_critic(
    observation_spec: Any, action_spec: specs.Array, config: Config = Config()
) -> Network:
    """A policy over discrete actions and a value, for an environment's two specs.

    Raises UserError if the actions are not discrete.
    """
    if not isinstance(action_spec, specs.DiscreteArray):
        raise UserError(
            f"action_spec is {action_spec}; this network has a head for discrete actions "
            "only (a dm_env DiscreteArray)"
        )
    module = ActorCritic(config, int(action_spec.num_values))
    cell = make_cell(config)

    def init(key: Key) -> PyTree:
        observation = jax.tree.map(
            lambda spec: jnp.zeros((1, 1, *spec.shape), spec.dtype), observation_spec
        )
        zeros = jnp.zeros((1, 1))
        timesteps = dm_env.TimeStep(zeros.astype(jnp.int32), zeros, zeros, observation)
        return module.init(key, initial_memory(1), timesteps)

    def initial_memory(batch_size: int) -> PyTree:
        branches = 2 if config.separate_value else 1
        if cell is None:
            return ((),) * branches
        return (cell.initialize_carry(jax.random.key(0), (batch_size, 1)),) * branches

    def step(params: PyTree, memory: PyTree, timestep: dm_env.TimeStep):
        timesteps = jax.tree.map(lambda x: x[None], timestep)
        memory, predictions = module.apply(params, memory, timesteps)
        return memory, jax.tree.map(lambda x: x[0], predictions)

    def unroll(params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep):
        return module.apply(params, memory, timesteps)[1]

    return Network(init, initial_memory, step, unroll)


class ActorCritic(nn.Module):
    """(memory [B, ...], timesteps [T, B, ...]) -> (memory, Predictions [T, B, ...])."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, memory: tuple, timesteps: dm_env.TimeStep):
        branches = [Branch(self.config)(part, timesteps) for part in memory]
        memory, features = zip(*branches)  # features [T, B, F]
        logits = dense(self.num_actions)(features[0])
        return memory, Predictions(logits, dense(1)(features[-1])[..., 0])


class Branch(nn.Module):
    """Torso and core: what the heads see, [T, B, F]."""

    config: Config

    @nn.compact
    def __call__(self, memory: PyTree, timesteps: dm_env.TimeStep):
        features = nn.BatchApply(make_torso(self.config))(timesteps.observation)
        if self.config.memory == "none":
            return memory, features
        return Core(make_cell(self.config))(memory, features, timesteps.first())


class Core(nn.Module):
    """A recurrent cell over time, its memory zero before the FIRST of an episode."""

    cell: nn.RNNCellBase

    def __call__(self, memory: PyTree, features: jax.Array, first: jax.Array):
        def step(cell, memory, inputs):
            features, first = inputs  # [B, F], [B]
            memory = jax.tree.map(
                lambda x: jnp.where(first[:, None], jnp.zeros_like(x), x), memory
            )
            return cell(memory, features)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        return scan(self.cell, memory, (features, first))


def make_torso(config: Config) -> nn.Module:
    if config.torso == "minatar":
        return torsos.MinAtar()
    return torsos.MLP(config.hidden_sizes, getattr(nn, config.activation))


def make_cell(config: Config) -> nn.RNNCellBase | None:
    cells = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}
    return cells[config.memory](config.memory_size) if config.memory in cells else None


def dense(features: int) -> nn.Dense:
    return nn.Dense(features, kernel_init=torsos.fan_in_uniform)
