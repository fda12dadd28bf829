"""Memories: the layers of a network's recurrent core, behind one interface.

A layer is a flax module that maps (memory [B, ...], features [T, B, F], first [T, B]) to
(memory, features [T, B, N]), and whose memory is as at the start of an episode wherever `first`
is true: T = 1 is a step, and any T computes what T steps do. `initial(batch_size)` is the memory
at the start of an episode, all zeros.

LSTM and GRU go through time step by step. LRU and minGRU are linear in their memory, so that all
rows are computed together; a transformer computes them together by attention.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from podracer import kernels
from podracer.agent import PyTree
from podracer.networks import torsos

dense = partial(torsos.dense, kernel_init=nn.initializers.lecun_normal())

# Kinds whose layers add to their input, which is brought to their size once.
RESIDUAL = "lru", "mingru", "gtrxl"


class Cell(nn.Module):
    """A recurrent cell over time; its memory is reset to 0 at FIRST."""

    cell: nn.RNNCellBase

    def __call__(self, memory: PyTree, features: jax.Array, first: jax.Array):
        if self.is_initializing():
            self.cell(memory, features[0])
        cell = self.cell.clone(parent=None)  # unbound, as lax.scan needs it

        def step(params, memory, inputs):
            features, first = inputs  # [B, F], [B]
            memory = jax.tree.map(
                lambda x: jnp.where(first[:, None], jnp.zeros_like(x), x), memory
            )
            return cell.apply(params, memory, features)

        over_time = partial(step, self.cell.variables)
        inputs = features, first
        return kernels.scan(over_time, memory, inputs, together=8, recompute=True)

    @nn.nowrap
    def initial(self, batch_size: int) -> PyTree:
        # All zeros: neither the key nor the width of the input matters.
        return self.cell.initialize_carry(jax.random.key(0), (batch_size, 1))


class LRU(nn.Module):
    """Linear recurrent unit (Orvieto et al. 2023, arXiv:2303.06349), without its block.

    h_t = decay h_t-1 + scale B x_t is complex and elementwise; here it is a pair of real and
    imaginary part, for devices and files without complex numbers. The output is Re(C h_t) + D
    x_t. |decay| = exp(-exp(nu)) is below 1 for any parameter; initially it is drawn from
    `radii`, and the angle up to `most_angle`: slow ones, which remember for long.
    """

    size: int
    radii: tuple[float, float] = (0.9, 0.999)
    most_angle: float = math.pi / 10

    @nn.compact
    def __call__(self, memory: tuple, features: jax.Array, first: jax.Array):
        nu = self.param("nu", self.draw_nu, (self.size,))
        theta = self.param("theta", self.draw_theta, (self.size,))
        radius, angle = jnp.exp(-jnp.exp(nu)), jnp.exp(theta)
        scale = self.param("scale", lambda _: jnp.log(1 - radius**2) / 2)
        inputs = nn.Dense(2 * self.size, use_bias=False, name="inputs")(features)
        inputs *= jnp.exp(jnp.concatenate([scale, scale]))[None, None]
        decay = radius * jnp.cos(angle), radius * jnp.sin(angle)
        decay = jax.tree.map(
            lambda x: jnp.where(first[..., None], 0.0, x[None, None]), decay
        )
        states = kernels.linear_recurrence(
            decay, tuple(jnp.split(inputs, 2, axis=-1)), memory
        )
        skip = self.param("skip", nn.initializers.normal(1.0), features.shape[-1:])
        both = jnp.concatenate(states, axis=-1)
        outputs = (
            dense(features.shape[-1], name="outputs")(both)
            + skip[None, None] * features
        )
        return jax.tree.map(lambda x: x[-1], states), outputs

    def draw_nu(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Uniform on the ring between the radii."""
        low, high = (x**2 for x in self.radii)
        return jnp.log(
            -jnp.log(jax.random.uniform(key, shape, minval=low, maxval=high)) / 2
        )

    def draw_theta(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        share = jax.random.uniform(key, shape, minval=1e-3)
        return jnp.log(self.most_angle * share)

    @nn.nowrap
    def initial(self, batch_size: int) -> PyTree:
        return tuple(jnp.zeros((2, batch_size, self.size)))


class MinGRU(nn.Module):
    """minGRU (Feng et al. 2024, arXiv:2410.01201), without its block.

    h_t = (1 - z_t) h_t-1 + z_t c_t, where the gate z and the candidate c depend on x_t alone.
    Initially 1 / z is from 2 up to `most_steps` (chrono initialization, arXiv:1804.11188): with
    biases of 0 a memory would halve in a step, and no gradient reach far back.
    """

    size: int
    most_steps: int = 128

    @nn.compact
    def __call__(self, memory: jax.Array, features: jax.Array, first: jax.Array):
        gate = dense(self.size, name="gate", bias_init=self.draw_bias)
        z = nn.sigmoid(gate(features))
        candidate = dense(self.size, name="candidate")(features)
        decay = jnp.where(first[..., None], 0.0, 1.0 - z)
        states = kernels.linear_recurrence(decay, z * candidate, memory)
        return states[-1], states

    def draw_bias(self, key: jax.Array, shape: tuple[int, ...], _: Any) -> jax.Array:
        return -jnp.log(
            jax.random.uniform(key, shape, minval=1, maxval=self.most_steps - 1)
        )

    @nn.nowrap
    def initial(self, batch_size: int) -> PyTree:
        return jnp.zeros((batch_size, self.size))


class Residual(nn.Module):
    """A linear recurrence in the block of S5 and LRU: x + GLU(GELU(recurrence(norm(x)))).

    Stacked for RL with resets within an unroll by Lu et al. 2023 (arXiv:2303.03982).
    """

    recurrence: Callable[[int], Any]  # LRU or MinGRU
    size: int

    @nn.compact
    def __call__(self, memory: PyTree, features: jax.Array, first: jax.Array):
        recurrence = self.recurrence(self.size, name="recurrence")
        memory, y = recurrence(memory, nn.LayerNorm(name="norm")(features), first)
        y, gate = jnp.split(dense(2 * self.size, name="output")(nn.gelu(y)), 2, -1)
        return memory, features + y * nn.sigmoid(gate)

    @nn.nowrap
    def initial(self, batch_size: int) -> PyTree:
        return self.recurrence(self.size).initial(batch_size)


class Window(NamedTuple):
    """The last W rows that a layer of a transformer has seen."""

    keys: jax.Array  # [B, W, N]
    values: jax.Array  # [B, W, N]
    filled: jax.Array  # int32 [B], how many of them, the last, are of this episode


class GTrXL(nn.Module):
    """A layer of the gated transformer-XL (Parisotto et al. 2019, arXiv:1910.06764).

    Normalization is in front of attention and MLP, and a GRU's gates in place of the sums after
    them. A row attends to the last `window` rows of its episode, itself included, by their
    content and their distance (Transformer-XL, arXiv:1901.02860). The window keeps keys and
    values as they were computed: a step costs one row, and what it keeps of older parameters
    stays as it was, as an LSTM's memory does.
    """

    size: int
    window: int
    heads: int

    @nn.compact
    def __call__(self, memory: Window, features: jax.Array, first: jax.Array):
        y = nn.LayerNorm(name="attention_norm")(features)
        memory, y = self.attention(memory, y, first)
        x = gated("attention_gate", features, nn.relu(y))
        y = nn.LayerNorm(name="mlp_norm")(x)
        y = nn.relu(dense(self.size, name="mlp_0")(y))
        y = nn.relu(dense(self.size, name="mlp_1")(y))
        return memory, gated("mlp_gate", x, y)

    def attention(self, memory: Window, x: jax.Array, first: jax.Array):
        """(the window after, the result [T, B, N]) of rows x [T, B, N]."""
        length, width = x.shape[0], self.size // self.heads
        joined = nn.Dense(3 * self.size, use_bias=False, name="queries_keys_values")(x)
        joined = jnp.swapaxes(joined, 0, 1)  # [B, T, 3 N]
        queries, keys, values = jnp.split(joined, 3, axis=-1)
        # Without the oldest, which no row sees: a step makes the next window, and copies it once.
        keys = jnp.concatenate([memory.keys[:, 1:], keys], axis=1)  # [B, W - 1 + T, N]
        values = jnp.concatenate([memory.values[:, 1:], values], axis=1)

        # Which episode a row is of, counted from that before row 0; -1: of an earlier one.
        episode = jnp.cumsum(first.astype(jnp.int32), axis=0).T  # [B, T]
        oldest = self.window - memory.filled[:, None]
        of_window = jnp.where(jnp.arange(1, self.window)[None] < oldest, -1, 0)
        of_keys = jnp.concatenate([of_window, episode], axis=1)  # [B, W - 1 + T]
        # Row t is key W - 1 + t, and sees W keys up to itself.
        ahead = jnp.arange(keys.shape[1])[None] - jnp.arange(length)[:, None]
        near = (ahead >= 0) & (ahead < self.window)
        seen = near[None] & (of_keys[:, None] == episode[..., None])

        def by_head(x):  # [..., N] -> [..., H, N / H]
            return x.reshape(*x.shape[:-1], self.heads, width)

        distances = by_head(
            nn.Dense(self.size, use_bias=False, name="distances")(
                sinusoids(self.window, self.size)
            )
        )
        of_content, of_distance = (
            self.param(name, nn.initializers.zeros, (self.heads, width))[None, None]
            for name in ("content_bias", "distance_bias")
        )
        queries, keys_by_head = by_head(queries), by_head(keys)
        scores = jnp.einsum("bthd,bkhd->bhtk", queries + of_content, keys_by_head)
        # From the most distant of the W rows on
        far = jnp.einsum("bthd,whd->bhtw", queries + of_distance, distances[::-1])
        scores = (scores + sheared(far)) / math.sqrt(width)
        scores = jnp.where(seen[:, None], scores, -jnp.inf)
        weights = nn.softmax(scores, axis=-1)
        result = jnp.einsum("bhtk,bkhd->tbhd", weights, by_head(values))
        result = dense(self.size, name="result")(result.reshape(x.shape))

        last = of_keys[:, -self.window :] == episode[:, -1:]
        after = Window(
            keys[:, -self.window :],
            values[:, -self.window :],
            jnp.sum(last.astype(jnp.int32), axis=1),
        )
        return after, result

    @nn.nowrap
    def initial(self, batch_size: int) -> Window:
        keys, values = jnp.zeros((2, batch_size, self.window, self.size))
        return Window(keys, values, jnp.zeros(batch_size, jnp.int32))


def sinusoids(count: int, size: int) -> jax.Array:
    """The distances 0, ..., count - 1 as sines and cosines [count, size]."""
    half = (size + 1) // 2
    frequency = 10_000.0 ** (-jnp.arange(half) / half)
    angle = jnp.arange(count)[:, None] * frequency[None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)[:, :size]


def sheared(x: jax.Array) -> jax.Array:
    """[..., T, W] -> [..., T, W - 1 + T]: row t is moved t places to the right, and others are
    zeros, by padding and reading in other lengths, without a gather."""
    *batch, length, width = x.shape
    columns = width - 1 + length
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length)])
    flat = padded.reshape(*batch, length * (columns + 1))
    return flat[..., : length * columns].reshape(*batch, length, columns)


def gated(name: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """x [..., N] that y [..., N] changes, as an input a GRU's memory, at first hardly.

    Called in a module's `__call__`, to which its parameters belong.
    """
    size = x.shape[-1]
    of_y = dense(3 * size, name=f"{name}_y")(y)
    of_x = nn.Dense(2 * size, use_bias=False, name=f"{name}_x")(x)
    reset_y, update_y, candidate_y = jnp.split(of_y, 3, axis=-1)
    reset_x, update_x = jnp.split(of_x, 2, axis=-1)
    reset = nn.sigmoid(reset_y + reset_x)
    update = nn.sigmoid(update_y + update_x - 2.0)  # section 3.2: so that it can start
    candidate = nn.Dense(size, use_bias=False, name=f"{name}_reset")(reset * x)
    return x + update * (jnp.tanh(candidate_y + candidate) - x)


def make_layer(kind: str, size: int, window: int, heads: int) -> Any:
    """A layer of a kind's recurrent core."""
    if kind in ("lstm", "gru"):
        cell = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}[kind]
        return Cell(cell(size, recurrent_kernel_init=torsos.orthogonal()))
    if kind == "gtrxl":
        return GTrXL(size, window, heads)
    return Residual({"lru": LRU, "mingru": MinGRU}[kind], size)
