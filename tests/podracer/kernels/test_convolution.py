"""Convolutions are flax's, and compile as they should on every platform."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import kernels
from tests.jitted import drawn

pytestmark = pytest.mark.core

PAD1 = ((1, 1), (1, 1))
CASES = {
    "minatar": ((5, 10, 10, 4), 16, 3, 1, "VALID"),
    "minatar, 10 channels": ((5, 10, 10, 10), 16, 3, 1, "VALID"),
    "padded by 1": ((2, 13, 11, 16), 8, 3, 1, PAD1),
    "8x8/4": ((2, 84, 84, 4), 32, 8, 4, "VALID"),
    "4x4/2": ((2, 20, 20, 32), 8, 4, 2, "VALID"),
    "odd sizes": ((2, 17, 23, 16), 8, 4, 2, "VALID"),
    "stride does not divide": ((2, 17, 22, 16), 8, 3, 2, "SAME"),
    "few channels": ((2, 9, 11, 3), 5, (2, 4), 1, ((2, 0), (1, 3))),
    "few channels, other stride": ((2, 9, 15, 3), 5, 3, (2, 1), PAD1),
    "uneven": ((2, 3, 15, 14, 9), 5, (2, 5), (3, 2), ((2, 0), (1, 3))),
}


def make(case):
    shape, features, size, stride, padding = CASES[case]
    size, stride = (v if isinstance(v, tuple) else (v, v) for v in (size, stride))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    flax = nn.Conv(features, size, stride, padding)
    return x, flax.copy(conv_general_dilated=kernels.conv_general_dilated), flax


def max_pool(x):
    return kernels.max_pool(x, (3, 3), (2, 2), PAD1)


def flax_max_pool(x):
    return nn.max_pool(x, (3, 3), (2, 2), PAD1)


def loss(module, params, x):
    return jnp.sum(jnp.square(module.apply(params, x))) / x.size


@pytest.mark.parametrize("case", CASES)
def test_equals_flax(case):
    x, ours, flax = make(case)
    params = drawn(flax.init, x)
    shapes = jax.eval_shape(ours.init, jax.random.key(1), x)
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)

    @functools.partial(jax.jit, static_argnums=0)
    def run(module, params, x):
        gradients = jax.grad(loss, argnums=(1, 2))(module, params, x)
        return module.apply(params, x), gradients

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        *(run(module, params, x) for module in (ours, flax)),
    )


def test_leading_axes_and_vmap():
    x, module, _ = make("minatar")
    params, apply = drawn(module.init, x), jax.jit(module.apply)
    y = np.asarray(apply(params, x))
    more = np.asarray(apply(params, x[None, :, None]))
    np.testing.assert_array_equal(more[0, :, 0], y)
    np.testing.assert_allclose(apply(params, x[0]), y[0], rtol=1e-5, atol=1e-5)

    def gradient(params):
        return jax.grad(loss, argnums=(1, 2))(module, params, x)

    both = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), params)
    mapped = jax.jit(jax.vmap(gradient))(both)
    second = jax.jit(gradient)(jax.tree.map(lambda leaf: leaf[1], both))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[1], b, rtol=1e-4, atol=1e-5),
        mapped,
        second,
    )


@pytest.mark.parametrize("case", ["minatar", "4x4/2"])
def test_second_derivative(case):
    """As a meta-gradient takes it: through an update."""
    x, *modules = make(case)
    params = drawn(modules[0].init, x)

    def updated_loss(params, module):
        gradient = jax.grad(loss, argnums=1)(module, params, x)
        return loss(module, jax.tree.map(lambda p, g: p - g, params, gradient), x)

    ours, flax = (
        jax.jit(jax.grad(updated_loss), static_argnums=1)(params, module)
        for module in modules
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, flax
    )


@pytest.mark.parametrize("shape", [(2, 84, 84, 4), (3, 21, 42, 3), (1, 11, 7, 1)])
@pytest.mark.parametrize("ties", [False, True])
def test_max_pool_equals_flax(shape, ties):
    random = np.random.default_rng(0)
    x = random.normal(size=shape).astype(np.float32)
    x = np.round(x) if ties else x
    d_y = random.normal(size=jax.eval_shape(max_pool, x).shape).astype(np.float32)

    @functools.partial(jax.jit, static_argnums=0)
    def run(pool, x, d_y):
        y, backwards = jax.vjp(pool, x)
        return y, backwards(d_y)[0]

    (y, d_x), (expected, expected_d_x) = (
        run(pool, x, d_y) for pool in (max_pool, flax_max_pool)
    )
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(d_x, expected_d_x, rtol=1e-5, atol=1e-5)


def test_max_pool_does_not_hide_nan():
    x = np.random.default_rng(0).normal(size=(2, 8, 9, 3)).astype(np.float32)
    x[0, 5, 4] = np.nan
    y = jax.jit(max_pool)(x)
    assert np.isnan(y).sum() == 2 * 3  # of windows of rows 5 to 7, columns 3 to 5
    np.testing.assert_array_equal(y, flax_max_pool(x))
