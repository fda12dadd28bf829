"""Convolution and pooling that are fast on a CPU, their gradients inside loops too.

XLA:CPU computes a convolution's gradient 7 to 40 times slower inside a loop (jax issue
12868), where it keeps a layout for which it has no kernel. Pooling is slow in forward passes
too. So on a CPU these are written in operations that are fast there; other platforms have XLA's own.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import lax

from podracer.kernels.platforms import by_platform
from podracer.kernels.switch import is_on

Pads = tuple[tuple[int, int], tuple[int, int]]  # (top, bottom), (left, right)
WINDOW, STRIDES, PADDING = (3, 3), (2, 2), ((1, 1), (1, 1))  # of our pooling


def conv_general_dilated(
    image: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **options: Any,
) -> jax.Array:
    """`lax.conv_general_dilated` of [N, H, W, C] and [kh, kw, C, F], not dilated.

    For `flax.linen.Conv(conv_general_dilated=...)`.
    """
    if not is_on("convolution"):
        return lax.conv_general_dilated(image, kernel, strides, padding, **options)
    if isinstance(padding, str):
        sizes = image.shape[1:3], kernel.shape[:2]
        padding = lax.padtype_to_pads(*sizes, strides, padding)
    return convolve(image, kernel, tuple(strides), tuple(padding))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(
    image: jax.Array, kernel: jax.Array, strides: tuple[int, int], pads: Pads
) -> jax.Array:
    """[N, H, W, C] * [kh, kw, C, F] -> [N, H', W', F]; reverse mode only, any order."""
    return _convolve(strides, pads, image, kernel)


def _convolve(strides, pads, image, kernel):
    chex.assert_rank([image, kernel], 4)
    return lax.conv_general_dilated(
        image, kernel, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _convolve_backward(strides, pads, residuals, d_output):
    def on_cpu(image, kernel, d_output):
        blocks, unblock = jax.vjp(partial(_blocks, strides, pads), image, kernel)
        return unblock(_gradients(*blocks, d_output))

    native = _gradient(partial(_convolve, strides, pads))
    return by_platform(*residuals, d_output, cpu=on_cpu, default=native)


convolve.defvjp(lambda *x: (convolve(*x), x[:2]), _convolve_backward)


def _blocks(strides, pads, image, kernel):
    """An equivalent image and kernel with stride 1 and no padding.

    A block of strides[0] x strides[1] pixels becomes one pixel with all of their channels.
    """
    (sh, sw), ((top, bottom), (left, right)) = strides, pads
    n, h, w, channels = image.shape
    kh, kw, _, features = kernel.shape
    bh, bw = -(-kh // sh), -(-kw // sw)
    rows = (h + top + bottom - kh) // sh + bh
    columns = (w + left + right - kw) // sw + bw
    # A negative width crops the pixels that no window reaches.
    high = rows * sh - h - top, columns * sw - w - left
    zero = jnp.zeros((), image.dtype)
    none = (0, 0, 0)
    image = lax.pad(image, zero, (none, (top, high[0], 0), (left, high[1], 0), none))
    kernel = jnp.pad(kernel, ((0, bh * sh - kh), (0, bw * sw - kw), (0, 0), (0, 0)))
    image = image.reshape(n, rows, sh, columns, sw, channels).swapaxes(2, 3)
    kernel = kernel.reshape(bh, sh, bw, sw, channels, features).swapaxes(1, 2)
    return image.reshape(n, rows, columns, -1), kernel.reshape(bh, bw, -1, features)


def _gradients(image, kernel, d_output):
    """Gradients of a convolution with stride 1 and no padding, as such convolutions."""
    kh, kw = kernel.shape[:2]
    full = ((kh - 1, kh - 1), (kw - 1, kw - 1))
    d_image = convolve(d_output, kernel[::-1, ::-1].swapaxes(2, 3), (1, 1), full)
    # The input channels are the batch, the batch is the channels.
    image, d_output = image.transpose(3, 1, 2, 0), d_output.transpose(1, 2, 0, 3)
    d_kernel = convolve(image, d_output, (1, 1), ((0, 0), (0, 0)))
    return d_image, d_kernel.transpose(1, 2, 0, 3)


def max_pool(
    x: jax.Array, window: tuple[int, int], strides: tuple[int, int], padding: Pads
) -> jax.Array:
    """`flax.linen.max_pool` of [N, H, W, C]; a kernel for windows of 3x3 with stride 2 that
    are padded by 1 on every side."""
    ours = (window, strides, padding) == (WINDOW, STRIDES, PADDING)
    if ours and is_on("convolution"):
        return _max_pool(x)
    return _native_max_pool(x, window, strides, padding)


def _native_max_pool(x, window=WINDOW, strides=STRIDES, padding=PADDING):
    chex.assert_rank(x, 4)
    pads = ((0, 0), *padding, (0, 0))
    window, strides = (1, *window, 1), (1, *strides, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, pads)


@jax.custom_vjp
def _max_pool(x):
    return by_platform(x, cpu=_max_pool_by_axis, default=_native_max_pool)


def _max_pool_backward(x, d_y):
    on_cpu, native = _gradient(_max_pool_by_axis), _gradient(_native_max_pool)
    return by_platform(x, d_y, cpu=on_cpu, default=native)


_max_pool.defvjp(lambda x: (_max_pool(x), x), _max_pool_backward)


def _max_pool_by_axis(x):
    """The same; on a CPU at least 1.5 times as fast, its gradient at least 5 times."""
    rows = _pool(2, x)
    return _pool(1, rows)  # in this order the first of equal pixels wins, as in XLA


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pool(axis: int, x: jax.Array) -> jax.Array:
    """The maxima of windows of 3 with stride 2 along an axis, padded by 1."""
    return reduce(jnp.maximum, _windows(axis, x))


def _windows(axis, x):
    """The first, second and third pixel of each window."""
    x = _pad(axis, x, 0, x.shape[axis] % 2, -jnp.inf)
    x = x.reshape(*x.shape[:axis], -1, 2, *x.shape[axis + 1 :])
    even, odd = (lax.index_in_dim(x, i, axis + 1, keepdims=False) for i in range(2))
    return _pad(axis, odd, 1, -1, -jnp.inf), even, odd


def _pool_backward(axis, residuals, d_y):
    x, y = residuals
    first, second, _ = _windows(axis, x)
    is_first = first == y  # the first of equal pixels
    is_second = (second == y) & ~is_first
    d_first = jnp.where(is_first, d_y, 0.0)
    d_second = jnp.where(is_second, d_y, 0.0)
    d_third = jnp.where(is_first | is_second, 0.0, d_y)
    # An odd pixel is the third of its window and the first of the next.
    d_odd = d_third + _pad(axis, d_first, -1, 1, 0.0)
    d_x = jnp.stack([d_second, d_odd], axis + 1)
    d_x = d_x.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])
    return (lax.slice_in_dim(d_x, 0, x.shape[axis], axis=axis),)


_pool.defvjp(lambda axis, x: (y := _pool(axis, x), (x, y)), _pool_backward)


def _pad(axis, x, before, after, fill):
    """x with `fill` at both ends of an axis; a negative width crops."""
    widths = [(before, after, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.array(fill, x.dtype), widths)


def _gradient(function: Callable) -> Callable:
    """(*inputs, d_output) -> d_inputs"""
    return lambda *args: jax.vjp(function, *args[:-1])[1](args[-1])
