"""Torsos: from an observation [B, ...] to features [B, F].

Weights are initially those of `kernel_init`, by default uniform within +-1/sqrt(fan_in), as in
PyTorch, and biases 0. Images are [B, H, W, C]; bytes are divided by 255 here, so that they are
stored as bytes elsewhere.
`dtype` is what the layers compute in; None: their inputs' and parameters'. Parameters are
float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from dm_env import specs

from podracer import kernels
from podracer.agent import Key, PyTree


def orthogonal(scale: float = 1.0) -> nn.initializers.Initializer:
    """Orthogonal matrices times `scale`, one after another under `jax.vmap`.

    A CPU with few threads deadlocks on batches of the QR decompositions that they are made
    of (jaxlib 0.10.2: each waits in one of XLA's threads for others).
    """
    initialize = nn.initializers.orthogonal(scale)

    def one(key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        draw = jax.custom_batching.sequential_vmap(
            lambda k: initialize(k, shape, dtype)
        )
        return draw(key)

    return one


fan_in_uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
INITS = {
    "uniform": fan_in_uniform,
    "glorot": nn.initializers.glorot_uniform(),
    "orthogonal": orthogonal(2**0.5),
    # A normal's standard deviation shrinks to this share of it when it is truncated at 2.
    "truncated": nn.initializers.variance_scaling(
        0.87962566103423978**2, "fan_in", "truncated_normal"
    ),
}
Init = Literal["uniform", "glorot", "orthogonal", "truncated"]
ACTIVATIONS = {"relu": kernels.relu, "tanh": jnp.tanh}


class MLP(nn.Module):
    """Fully connected layers over the flattened leaves of any pytree, concatenated.

    Bytes are divided by 255, other integers are taken as quantities; `one_hot` encodes discrete observations.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Callable[[jax.Array], jax.Array] = kernels.relu
    kernel_init: nn.initializers.Initializer = fan_in_uniform
    layer_norm: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        leaves = [flatten(x) for x in jax.tree.leaves(observation)]
        x = kernels.concatenate(leaves, axis=-1)
        for size in self.hidden_sizes:
            x = dense(size, dtype=self.dtype, kernel_init=self.kernel_init)(x)
            x = self.activation(normalized(x, self.layer_norm))
        return x


class Convolutions(nn.Module):
    """Convolutions without padding, one fully connected layer, and ReLUs.

    `layers` has the features, the size and the stride of each convolution.
    """

    layers: tuple[tuple[int, int, int], ...]
    features: int
    kernel_init: nn.initializers.Initializer = fan_in_uniform
    layer_norm: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        x, init, dtype = to_float(image), self.kernel_init, self.dtype
        for number, (features, size, stride) in enumerate(self.layers, 1):
            x = conv(features, size, stride, "VALID", init, dtype)(x)
            x = normalized(x, self.layer_norm)
            x = kernels.relu(flatten(x) if number == len(self.layers) else x)
        x = dense(self.features, kernel_init=init, dtype=dtype)(x)
        return kernels.relu(normalized(x, self.layer_norm))


CONVOLUTIONS = {
    # MonoBeast's network for MinAtar (arXiv:1910.03552, section 3), with ReLUs
    "minatar": partial(Convolutions, ((16, 3, 1),), 128),
    # MonoBeast's AtariNet, which is DQN's network (doi:10.1038/nature14236)
    "shallow": partial(Convolutions, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    # A3C's (arXiv:1602.01783), which is the first DQN's (arXiv:1312.5602)
    "a3c": partial(Convolutions, ((16, 8, 4), (32, 4, 2)), 256),
}


class ResNet(nn.Module):
    """IMPALA's deep network (arXiv:1802.01561, Fig 3), pooled as PolyBeast does.

    `width` multiplies the channels, `depth` the residual blocks.
    """

    width: int = 1
    depth: int = 1
    kernel_init: nn.initializers.Initializer = fan_in_uniform
    dtype: Any = None

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        x, options = (
            to_float(image),
            {"kernel_init": self.kernel_init, "dtype": self.dtype},
        )
        for channels in (16, 32, 32):
            same = partial(conv, channels * self.width, **options)
            x = max_pool(same()(x))
            for _ in range(2 * self.depth):
                y = same()(kernels.relu(x))
                x = x + same()(kernels.relu(y))
        x = dense(256, **options)(kernels.relu(flatten(x)))
        return kernels.relu(x)


def one_hot(observation: PyTree, observation_spec: PyTree) -> PyTree:
    """The observation with discrete leaves (a DiscreteArray) as vectors [B, num_values]."""

    def encode(spec, x):
        if isinstance(spec, specs.DiscreteArray):
            return jax.nn.one_hot(x, int(spec.num_values))
        return x

    return jax.tree.map(encode, observation_spec, observation)


def to_float(image: jax.Array) -> jax.Array:
    """float32 [B, H, W, C], bytes as 0 to 1."""
    chex.assert_rank(image, 4)
    scale = 255 if image.dtype == jnp.uint8 else 1
    return image.astype(jnp.float32) / scale


def centered(image: jax.Array) -> jax.Array:
    """float32 [B, H, W, C], bytes as 0 to 1, less each channel's mean over the image."""
    image = to_float(image)
    return image - image.mean((1, 2), keepdims=True)


def flatten(x: jax.Array) -> jax.Array:
    """float32 [B, F], bytes as 0 to 1."""
    flat = x.reshape(x.shape[0], -1).astype(jnp.float32)
    return flat / 255 if x.dtype == jnp.uint8 else flat


def normalized(x: jax.Array, layer_norm: bool) -> jax.Array:
    """x [..., F], by layer normalization over F (arXiv:1607.06450) if wanted.

    Called in a module's `__call__`, to which its parameters belong.
    """
    return nn.LayerNorm()(x) if layer_norm else x


def conv(
    features: int,
    size: int = 3,
    stride: int = 1,
    padding: str = "SAME",
    kernel_init: nn.initializers.Initializer = fan_in_uniform,
    dtype: Any = None,
) -> nn.Conv:
    return nn.Conv(
        features,
        (size, size),
        (stride, stride),
        padding,
        kernel_init=kernel_init,
        dtype=dtype,
        conv_general_dilated=kernels.conv_general_dilated,
    )


def max_pool(image: jax.Array) -> jax.Array:
    """[N, H, W, C], windows of 3x3 with stride 2, padded by 1 on every side, as in PyTorch."""
    return kernels.max_pool(image, (3, 3), (2, 2), ((1, 1), (1, 1)))


def dense(
    features: int,
    name: str | None = None,
    kernel_init: nn.initializers.Initializer = fan_in_uniform,
    bias_init: nn.initializers.Initializer = nn.initializers.zeros,
    dtype: Any = None,
) -> nn.Dense:
    return nn.Dense(
        features,
        dtype=dtype,
        kernel_init=kernel_init,
        bias_init=bias_init,
        dot_general=kernels.dot_general,
        name=name,
    )
