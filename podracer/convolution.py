"""Convolution and pooling whose gradients are fast in loops on a CPU (jax issue 12868)."""

from collections.abc import Sequence
from functools import partial, reduce

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Pads = tuple[tuple[int, int], tuple[int, int]]  # (top, bottom), (left, right)
VALID = ((0, 0), (0, 0))
NARROW = (
    128  # width x channels up to which a row of an image is best taken as one vector
)


class Conv(nn.Module):
    """`flax.linen.Conv` over the last three axes, [..., H, W, C], with the same parameters.

    The same to rounding, too. Only the gradient on a CPU is this module's own: see `convolve`.
    """

    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: str | Sequence[tuple[int, int]] = "SAME"  # or "VALID", or Pads
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        pads = self.padding
        if isinstance(pads, str):
            pads = lax.padtype_to_pads(
                x.shape[-3:-1], self.kernel_size, self.strides, pads
            )
        image = x.reshape(-1, *x.shape[-3:])
        y = convolve(image, kernel, tuple(self.strides), tuple(pads))
        y = y + bias.reshape(1, 1, 1, -1)
        return y.reshape(*x.shape[:-3], *y.shape[1:])


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(
    image: jax.Array, kernel: jax.Array, strides: tuple[int, int], pads: Pads
) -> jax.Array:
    """[N, H, W, C] * [kh, kw, C, F] -> [N, H', W', F]; differentiable in reverse mode, any order.

    XLA:CPU runs a convolution's gradient 7 to 200 times slower in a loop than outside, because
    there it keeps a layout for which it has no kernel. So on a CPU the gradient is spelled out as
    the ordinary convolutions that it is. The platform is chosen when the program is lowered.
    """
    return _native(image, kernel, strides, pads)


def _native(image, kernel, strides, pads):
    chex.assert_rank([image, kernel], 4)
    return lax.conv_general_dilated(
        image, kernel, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _forward(image, kernel, strides, pads):
    return convolve(image, kernel, strides, pads), (image, kernel)


def _backward(strides, pads, residuals, d_output):
    def native(image, kernel, d_output):
        convolution = partial(_native, strides=strides, pads=pads)
        return jax.vjp(convolution, image, kernel)[1](d_output)

    def ordinary(image, kernel, d_output):
        blocks, unblock = jax.vjp(partial(_blocks, strides, pads), image, kernel)
        return unblock(_gradients(*blocks, d_output))

    return lax.platform_dependent(*residuals, d_output, cpu=ordinary, default=native)


convolve.defvjp(_forward, _backward)


def _blocks(strides, pads, image, kernel):
    """An image and a kernel that give the same with stride 1 and no padding.

    A block of strides[0] x strides[1] pixels becomes one pixel of that many times the channels.
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
    """Of a convolution with stride 1 and no padding, as convolutions of the same kind."""
    kh, kw = kernel.shape[:2]
    full = ((kh - 1, kh - 1), (kw - 1, kw - 1))
    d_image = convolve(d_output, kernel[::-1, ::-1].swapaxes(2, 3), (1, 1), full)
    if image.shape[2] * image.shape[3] <= NARROW:
        return d_image, _narrow_kernel_gradient(image, d_output)
    # The input channels are the batch, the batch is the channels.
    image, d_output = image.transpose(3, 1, 2, 0), d_output.transpose(1, 2, 0, 3)
    d_kernel = convolve(image, d_output, (1, 1), VALID).transpose(1, 2, 0, 3)
    return d_image, d_kernel


def _narrow_kernel_gradient(image, d_output):
    """The same as products of whole rows of pixels, of which the gradient is a few diagonals."""
    n, h, w, channels = image.shape
    _, out_h, out_w, features = d_output.shape
    rows, d_rows = image.reshape(n, h, -1), d_output.reshape(n, out_h, -1)
    products = [
        jnp.einsum("nhx,nhy->xy", rows[:, i : i + out_h], d_rows)
        for i in range(h - out_h + 1)
    ]
    products = jnp.stack(products).reshape(-1, w, channels, out_w, features)
    diagonals = [
        jnp.einsum("iwcwf->icf", products[:, j : j + out_w])
        for j in range(w - out_w + 1)
    ]
    return jnp.stack(diagonals, axis=1)


def max_pool(x: jax.Array) -> jax.Array:
    """[..., H, W, C]: 3x3, stride 2, padded by 1 on every side, as PyTorch does it.

    The largest of shifted slices: the gradient of XLA's own pooling takes 4 to 10 times as long
    on a CPU. Of equal pixels the first in reading order gets the gradient, as there.
    """
    for axis in (-2, -3):  # columns, then rows: that order makes the ties agree
        x = _max_pool_axis(x, axis % x.ndim)
    return x


def _max_pool_axis(x, axis):
    length = (x.shape[axis] + 1) // 2
    widths = [(int(i == axis), int(i == axis), 0) for i in range(x.ndim)]
    x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), widths)
    shifted = (
        lax.slice_in_dim(x, i, i + 2 * length - 1, stride=2, axis=axis)
        for i in range(3)
    )
    return reduce(lambda a, b: jnp.where(b > a, b, a), shifted)
