"""Convolutions are flax's, and compile as they should on every platform."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import kernels

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
    x = jax.random.normal(jax.random.key(0), shape)
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
    params = flax.init(jax.random.key(1), x)
    assert jax.tree.map(jnp.shape, ours.init(jax.random.key(1), x)) == jax.tree.map(
        jnp.shape, params
    )
    np.testing.assert_allclose(
        ours.apply(params, x), flax.apply(params, x), rtol=1e-5, atol=1e-5
    )
    gradients = [
        jax.jit(jax.grad(loss, argnums=(1, 2)), static_argnums=0)(module, params, x)
        for module in (ours, flax)
    ]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *gradients
    )


def test_leading_axes_and_vmap():
    x, module, _ = make("minatar")
    params = module.init(jax.random.key(1), x)
    y = module.apply(params, x)
    np.testing.assert_array_equal(module.apply(params, x[None, :, None])[0, :, 0], y)
    np.testing.assert_allclose(module.apply(params, x[0]), y[0], rtol=1e-5, atol=1e-5)

    gradient = jax.grad(loss, argnums=(1, 2))
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    mapped = jax.vmap(lambda params: gradient(module, params, x))(both)
    second = gradient(module, jax.tree.map(lambda leaf: leaf[1], both), x)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[1], b, rtol=1e-4, atol=1e-5),
        mapped,
        second,
    )


@pytest.mark.parametrize("case", ["minatar", "4x4/2"])
def test_second_derivative(case):
    """As a meta-gradient takes it: through an update."""
    x, *modules = make(case)
    params = modules[0].init(jax.random.key(1), x)

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
    x = jax.random.normal(jax.random.key(0), shape)
    x = jnp.round(x) if ties else x
    y, ours = jax.vjp(max_pool, x)
    expected, flax = jax.vjp(flax_max_pool, x)
    np.testing.assert_array_equal(y, expected)
    d_y = jax.random.normal(jax.random.key(1), y.shape)
    np.testing.assert_allclose(ours(d_y)[0], flax(d_y)[0], rtol=1e-5, atol=1e-5)


def test_max_pool_does_not_hide_nan():
    x = jax.random.normal(jax.random.key(0), (2, 8, 9, 3)).at[0, 5, 4].set(jnp.nan)
    y = max_pool(x)
    assert jnp.isnan(y).sum() == 2 * 3  # of windows of rows 5 to 7, columns 3 to 5
    np.testing.assert_array_equal(y, flax_max_pool(x))
