"""The flax modules of an actor-critic network, and its configuration."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp

from podracer.agent import PyTree
from podracer.errors import UserError, check_at_least_one
from podracer.networks import encoders, heads, memories, torsos
from podracer.networks.network import Predictions
from podracer.networks.policies import Composite, Policy
from podracer.observations import selected


@dataclasses.dataclass(frozen=True)
class Config:
    """An actor-critic network."""

    torso: Literal["auto", "mlp", "minatar", "a3c", "shallow", "resnet"] = "auto"
    """network for the observation's images [H, W, C]: convolutions for MinAtar, those of
    A3C (a3c), those of DQN and MonoBeast (shallow; three times a3c's operations), or
    IMPALA's deep network (resnet); auto takes shallow for large images and minatar for
    small ones. All other leaves go through one mlp, and with mlp the images too"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """number of units in each layer of an mlp torso"""
    activation: Literal["relu", "tanh"] = "relu"
    """activation function of an mlp torso"""
    init: torsos.Init = "uniform"
    """initial weights of the torso: uniform within +-1/sqrt(fan in) as in PyTorch,
    Glorot's uniform, orthogonal times sqrt(2), or normal with 1/sqrt(fan in), truncated at
    twice that, as in Haiku"""
    layer_norm: bool = False
    """layer normalization before each activation function of the torso (not of a resnet)"""
    center_images: bool = False
    """subtract from each channel of an image its mean over the pixels before a torso of
    convolutions: a bright background, which is the same everywhere, is then 0"""
    head: heads.Config = dataclasses.field(default_factory=heads.Config)
    precision: Literal["float32", "bfloat16"] = "float32"
    """what the torso computes in; bfloat16 is for accelerators, and slower on a CPU.
    Parameters, recurrent core, heads and losses are float32 in any case"""
    width: int = 1
    """factor on the channels of a resnet torso"""
    depth: int = 1
    """factor on the residual blocks of a resnet torso"""
    last_reward: bool = False
    """feed the last reward, clipped to [-1, 1], to the recurrent core and the heads"""
    last_action: bool = False
    """feed the last action to the recurrent core and the heads (in code, the observation
    must include it: transformations.observe_last_action)"""
    separate_value: bool = False
    """separate torso and recurrent core for the value"""
    memory: Literal["none", "lstm", "gru", "lru", "mingru", "gtrxl"] = "none"
    """recurrent core between torso and heads: step by step (lstm, gru), linear and parallel
    over an unroll (lru, mingru), or a gated transformer (gtrxl)"""
    memory_size: int = 128
    """number of units in each layer of the recurrent core"""
    memory_layers: int = 1
    """number of layers of the recurrent core"""
    share_images: bool = False
    """images of one shape go through one torso, rather than each through its own"""
    policy_sees: tuple[str, ...] = ()
    """leaves of the observation that the policy sees, as `state` or `camera.pixels`; empty:
    all. Another value_sees gives the value a torso and recurrent core of its own"""
    value_sees: tuple[str, ...] = ()
    """leaves of the observation that the value sees; empty: all"""
    memory_window: int = 64
    """number of timesteps that each layer of gtrxl attends to, the present one included"""
    memory_heads: int = 4
    """number of attention heads of gtrxl; must divide memory_size"""

    def __post_init__(self):
        names = ("width", "depth", "memory_size", "memory_layers")
        names += ("memory_window", "memory_heads")
        check_at_least_one(
            **{f"hidden_sizes[{i}]": n for i, n in enumerate(self.hidden_sizes)},
            **{name: getattr(self, name) for name in names},
        )
        if self.layer_norm and self.torso == "resnet":
            raise UserError(
                "layer_norm is true, which a resnet torso does not have: leave it out "
                "(--network.no-layer-norm), or choose another torso"
            )
        self._check_attention()

    def _check_attention(self):
        if self.memory == "gtrxl":
            if self.memory_size % self.memory_heads:
                raise UserError(
                    f"memory_heads is {self.memory_heads}, which does not divide memory_size "
                    f"({self.memory_size}): choose a divisor"
                )
            return
        for name in ("memory_window", "memory_heads"):
            value = getattr(self, name)
            if value != getattr(Config, name):
                raise UserError(
                    f"{name} is {value}, which has no effect on memory {self.memory}: "
                    "leave it out, or choose gtrxl (--network.memory gtrxl)"
                )

    @property
    def branches(self) -> dict[str, tuple[str, ...]]:
        """The torsos with their recurrent cores, and the leaves that each sees."""
        if self.separate_value or self.policy_sees != self.value_sees:
            return {"policy": self.policy_sees, "value": self.value_sees}
        return {"shared": self.policy_sees}


class ActorCritic(nn.Module):
    """(memory [B, ...], timesteps [T, B, ...]) -> (memory, Predictions [T, B, ...])."""

    config: Config
    actions: heads.Actions

    @nn.compact
    def __call__(self, memory: tuple, timesteps: dm_env.TimeStep):
        branches = [
            Branch(self.config, sees, name=name)(x, timesteps)
            for (name, sees), x in zip(
                self.config.branches.items(), memory, strict=True
            )
        ]
        memory, features = zip(*branches, strict=True)  # features [T, B, F]
        policy = self.policy(features[0])
        value = torsos.dense(1, name="value_head")(features[-1])
        return memory, Predictions(policy, value[..., 0])

    def policy(self, features: jax.Array) -> Policy:
        """One head, or one for each part of a composite action."""
        structure, parts = self.actions
        composite = structure != jax.tree.structure(0)
        policies = [
            heads.PolicyHead(
                *part,
                self.config.head,
                name=f"policy_head_{n}" if composite else "policy_head",
            )(features)
            for n, part in enumerate(parts)
        ]
        return Composite(structure.unflatten(policies)) if composite else policies[0]


class Branch(nn.Module):
    """Torsos and recurrent core: features [T, B, F] for the heads."""

    config: Config
    sees: tuple[str, ...] = ()  # leaves of the observation; none: all

    @nn.compact
    def __call__(self, memory: tuple, timesteps: dm_env.TimeStep):
        config, observation = self.config, timesteps.observation
        if config.last_action:
            observation, last_action = observation
        seen = encode(config, selected(observation, self.sees))
        features = [seen.astype(jnp.promote_types(seen.dtype, jnp.float32))]
        if config.last_reward:
            features.append(jnp.clip(timesteps.reward, -1.0, 1.0)[..., None])
        if config.last_action:
            seen = jnp.where(timesteps.first()[..., None], 0.0, last_action)
            features.append(seen)
        features = jnp.concatenate(features, axis=-1)
        if config.memory in memories.RESIDUAL:
            features = memories.dense(config.memory_size, name="embedding")(features)
        after = []
        for layer, x in zip(make_layers(config), memory, strict=True):
            x, features = layer(x, features, timesteps.first())
            after.append(x)
        return tuple(after), features


def encode(config: Config, observation: PyTree) -> jax.Array:
    """Features [T, B, F] of all leaves [T, B, ...].

    Each image [T, B, H, W, C] goes through its torso, all other leaves through one together.
    Where these are several, one more layer joins them: a head, which is linear, could not
    tell what depends on two of them at once. Called in a module's `__call__`, to which the
    torsos' parameters belong.
    """
    features, others, torsos_of_images = [], [], {}
    for number, leaf in enumerate(jax.tree.leaves(observation)):
        torso = encoders.torso_of(leaf.shape[2:], config.torso)
        if torso == "mlp":
            others.append(leaf)
            continue
        shared = leaf.shape[2:] if config.share_images else number
        if shared not in torsos_of_images:
            torsos_of_images[shared] = nn.BatchApply(make_torso(config, torso))
        if config.center_images:
            leaf = nn.BatchApply(torsos.centered)(leaf)
        features.append(torsos_of_images[shared](leaf))
    if others:
        features.append(nn.BatchApply(make_torso(config, "mlp"))(others))
    if len(features) == 1:
        return features[0]
    joined = dataclasses.replace(config, hidden_sizes=config.hidden_sizes[-1:] or (64,))
    return nn.BatchApply(make_torso(joined, "mlp"))(features)


class WithHeads(nn.Module):
    """(memory, timesteps [T, B, ...]) -> (memory, heads(features [T, B, F])), in one branch."""

    config: Config
    heads: Callable[[jax.Array], PyTree]  # called in this module, which owns its layers

    @nn.compact
    def __call__(self, memory: tuple, timesteps: dm_env.TimeStep):
        branch = Branch(self.config, self.config.policy_sees, name="shared")
        after, features = branch(memory[0], timesteps)
        return (after,), self.heads(features)


def make_torso(config: Config, torso: str) -> nn.Module:
    init = torsos.INITS[config.init]
    dtype = jnp.bfloat16 if config.precision == "bfloat16" else None
    if torso == "mlp":
        activation = torsos.ACTIVATIONS[config.activation]
        return torsos.MLP(
            config.hidden_sizes, activation, init, config.layer_norm, dtype
        )
    if torso == "resnet":
        return torsos.ResNet(config.width, config.depth, init, dtype)
    return torsos.CONVOLUTIONS[torso](init, config.layer_norm, dtype)


def make_layers(config: Config) -> list[Any]:
    """The layers of the recurrent core, see `memories`."""
    sizes = config.memory_size, config.memory_window, config.memory_heads
    count = 0 if config.memory == "none" else config.memory_layers
    return [memories.make_layer(config.memory, *sizes) for _ in range(count)]
