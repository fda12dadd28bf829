"""MuZero's model: representation, dynamics and prediction (arXiv:1911.08265).

The hidden state is a vector, or [H, W, C] for images and boards; it is scaled to [0, 1].
There are no recurrent representations: the observation, possibly of stacked frames, must
tell what there is to know.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
from dm_env import specs

from podracer import kernels
from podracer.agent import Key, PyTree
from podracer.errors import UserError, check_at_least_one, check_range
from podracer.networks import heads, modules, torsos
from podracer.networks.building import check_shapes
from podracer.networks.value_support import Support, make_support

LARGE = 36  # pixels, side from which an image is scaled down 16 times
SMALL = 3  # pixels, side below which it is no image


class Model(NamedTuple):
    """A model as pure functions of a batch; `hidden` is any pytree [B, ...]."""

    # (key) -> params
    init: Callable[[Key], PyTree]
    # (params, observation [B, ...]) -> hidden
    representation: Callable[[PyTree, PyTree], PyTree]
    # (params, hidden, action [B]) -> (next hidden, reward logits [B, bins])
    dynamics: Callable[[PyTree, PyTree, jax.Array], tuple[PyTree, jax.Array]]
    # (params, hidden) -> (policy logits [B, A], value logits [B, bins])
    prediction: Callable[[PyTree, PyTree], tuple[jax.Array, jax.Array]]
    support: Support  # of rewards and values
    num_actions: int  # A
    observation_spec: Any  # a pytree of dm_env specs


@dataclasses.dataclass(frozen=True)
class Config:
    """A MuZero model."""

    torso: Literal["auto", "mlp", "convolution"] = "auto"
    """fully connected, or residual convolutions that keep [H, W, C]; auto takes
    convolutions for an image, and for anything else mlp; images among other leaves go
    through convolutions that end in a vector"""
    hidden_size: int = 64
    """number of units of an mlp's hidden state and of all fully connected layers"""
    channels: int = 16
    """number of channels of a convolutional hidden state"""
    depth: int = 1
    """number of residual blocks in representation and dynamics, and of layers in heads"""
    max_return: float = 500.0
    """largest absolute reward and discounted return, which decides the number of bins of
    rewards and values: four for each unit of the transformed return, at least 21; beyond 601
    they become wider, up to a unit; a run whose targets leave this range stops"""

    def __post_init__(self):
        sizes = ("hidden_size", "channels", "depth")
        check_at_least_one(**{name: getattr(self, name) for name in sizes})
        check_range("max_return", self.max_return, 1e-3, 1e9)


def make_model(
    observation_spec: Any, action_spec: specs.Array, config: Config = Config()
) -> Model:
    """A model for an environment's specs.

    Raises UserError for actions that are not one choice of several, for an observation that
    is not an image where convolutions are asked for, and, when traced, for observations
    unlike their spec.
    """
    num_actions = heads.number_of_actions(action_spec, "MuZero")
    support = make_support(config.max_return)
    module = WorldModel(
        convolutional(observation_spec, config), config, num_actions, support.bins
    )

    def one_hot(observation):
        batch = jax.tree.leaves(observation)[0].shape[:1]
        zeros = jnp.zeros(batch)
        timestep = dm_env.TimeStep(zeros, zeros, zeros, observation)
        check_shapes(observation_spec, timestep)
        return torsos.one_hot(observation, observation_spec)

    def init(key):
        observation = jax.tree.map(
            lambda spec: jnp.zeros((1, *spec.shape), spec.dtype), observation_spec
        )
        return module.init(key, one_hot(observation), jnp.zeros(1, jnp.int32))

    def representation(params, observation):
        observation = one_hot(observation)
        return module.apply(params, observation, method="representation")

    def dynamics(params, hidden, action):
        return module.apply(params, hidden, action, method="dynamics")

    def prediction(params, hidden):
        return module.apply(params, hidden, method="prediction")

    return Model(
        init,
        representation,
        dynamics,
        prediction,
        support,
        num_actions,
        observation_spec,
    )


def convolutional(observation_spec: Any, config: Config) -> bool:
    """Whether the hidden state is an image; UserError if it should be, but nothing is one."""
    leaves = jax.tree.leaves(observation_spec)
    images = [x for x in leaves if len(x.shape) == 3 and min(x.shape[:2]) >= SMALL]
    alone = len(leaves) == len(images) == 1
    if config.torso == "convolution" and not alone:
        shapes = [x.shape for x in leaves]
        raise UserError(
            f"torso is convolution, for one image [H, W, C] of at least {SMALL} pixels a "
            f"side; the observation is {shapes[0] if len(shapes) == 1 else shapes}: try torso "
            "auto"
        )
    return alone and config.torso != "mlp"


class WorldModel(nn.Module):
    """The three functions, which share nothing but the hidden state."""

    is_convolutional: bool
    config: Config
    num_actions: int
    bins: int

    def setup(self):
        config, bins = self.config, self.bins
        sizes = (config.hidden_size,) * config.depth
        if self.is_convolutional:
            self.encoder = ImageEncoder(config.channels, config.depth)
            self.transition = ImageTransition(config.channels, config.depth)
        else:
            self.encoder = VectorEncoder(config.torso, config.hidden_size, config.depth)
            self.transition = VectorTransition(config.hidden_size, config.depth)
        self.reward_head = Head(sizes, bins)
        self.policy_head = Head(sizes, self.num_actions)
        self.value_head = Head(sizes, bins)

    def __call__(self, observation: PyTree, action: jax.Array):
        """All of them, to make their parameters."""
        hidden, _ = self.dynamics(self.representation(observation), action)
        return self.prediction(hidden)

    def representation(self, observation: PyTree) -> jax.Array:
        return scale(self.encoder(observation))

    def dynamics(self, hidden: jax.Array, action: jax.Array):
        hidden = scale(
            self.transition(hidden, jax.nn.one_hot(action, self.num_actions))
        )
        return hidden, self.reward_head(hidden)

    def prediction(self, hidden: jax.Array):
        return self.policy_head(hidden), self.value_head(hidden)


def scale(hidden: jax.Array) -> jax.Array:
    """Each hidden state [B, ...] from 0, its minimum, to 1 (appendix G)."""
    axes = tuple(range(1, hidden.ndim))
    low = hidden.min(axes, keepdims=True)
    high = hidden.max(axes, keepdims=True)
    return (hidden - low) / jnp.maximum(high - low, 1e-5)


class Head(nn.Module):
    """Logits of hidden states [B, ...]; 0 at first: uniform, a reward and value of 0."""

    sizes: tuple[int, ...]
    outputs: int

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        if hidden.ndim == 4:  # the paper's 1x1 convolution
            channels = max(2, hidden.shape[-1] // 4)
            hidden = kernels.relu(torsos.conv(channels, 1)(hidden))
        x = torsos.flatten(hidden)
        for size in self.sizes:
            x = kernels.relu(torsos.dense(size)(x))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.zeros)(x)


class VectorEncoder(nn.Module):
    """Each leaf through its torso (`networks.encoders`), joined to a vector."""

    torso: str
    size: int
    depth: int

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        config = modules.Config(self.torso, (self.size,) * self.depth)
        rows = jax.tree.map(lambda x: x[None], observation)
        return torsos.dense(self.size)(modules.encode(config, rows)[0])


class VectorTransition(nn.Module):
    size: int
    depth: int

    @nn.compact
    def __call__(self, hidden: jax.Array, action: jax.Array) -> jax.Array:
        for _ in range(self.depth):
            x = kernels.relu(
                torsos.dense(self.size)(jnp.concatenate([hidden, action], -1))
            )
            hidden = hidden + torsos.dense(self.size)(x)
        return hidden


class Residual(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = torsos.conv(x.shape[-1])(kernels.relu(x))
        return x + torsos.conv(x.shape[-1])(kernels.relu(y))


class ImageEncoder(nn.Module):
    """Large images become 16 times smaller as in the paper: two strides, two poolings."""

    channels: int
    depth: int

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        x = torsos.to_float(image)
        if min(x.shape[1:3]) >= LARGE:
            x = torsos.conv(max(1, self.channels // 2), stride=2)(x)
            x = Residual()(x)
            x = torsos.conv(self.channels, stride=2)(x)
            x = Residual()(torsos.max_pool(Residual()(x)))
            x = torsos.max_pool(x)
        else:
            x = torsos.conv(self.channels)(x)
        for _ in range(self.depth):
            x = Residual()(x)
        return x


class ImageTransition(nn.Module):
    """The action is a plane of ones among planes of zeros."""

    channels: int
    depth: int

    @nn.compact
    def __call__(self, hidden: jax.Array, action: jax.Array) -> jax.Array:
        planes = jnp.broadcast_to(
            action[:, None, None], (*hidden.shape[:3], action.shape[-1])
        )
        x = torsos.conv(self.channels)(jnp.concatenate([hidden, planes], -1))
        x = x + hidden
        for _ in range(self.depth):
            x = Residual()(x)
        return x
