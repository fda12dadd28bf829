"""Layers with products of their own: flax's results, in operations that a CPU is fast at."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from podracer import kernels
from podracer.kernels import products

OUTPUTS = 1, 2, products.NARROW, products.NARROW + 1


def dense(outputs, **options):
    return nn.Dense(outputs, dot_general=kernels.dot_general, **options)


def concatenated(x):
    return kernels.concatenate([x], -1)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_a_layer_computes_as_a_layer_of_flax(outputs):
    x = jax.random.normal(jax.random.key(0), (7, 3, 5))
    layer, plain = dense(outputs), nn.Dense(outputs)
    params = layer.init(jax.random.key(1), x)
    chex.assert_trees_all_equal(params, plain.init(jax.random.key(1), x))

    def loss(params, x, layer):
        return jnp.sum(jnp.cos(layer.apply(params, x)))

    def squared_gradient(params, x, layer):
        gradients = jax.grad(loss, (0, 1))(params, x, layer)
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients))

    @partial(jax.jit, static_argnums=0)
    def everything(layer):  # with the second derivatives that meta-gradients need
        first = jax.grad(loss, (0, 1))(params, x, layer)
        second = jax.grad(squared_gradient, (0, 1))(params, x, layer)
        of_members = jax.vmap(jax.grad(loss), (None, 1, None))(params, x, layer)
        hessian = jax.hessian(loss)(params, x, layer)
        tangents = params, x
        forward = jax.jvp(lambda *args: loss(*args, layer), tangents, tangents)
        return layer.apply(params, x), first, second, of_members, hessian, forward

    ours, flax = everything(layer), everything(plain)
    chex.assert_trees_all_close(ours, flax, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_a_layer_computes_in_the_precision_that_is_asked_for(outputs):
    x = jax.random.normal(jax.random.key(0), (6, 5))
    layer = dense(outputs, dtype=jnp.bfloat16)
    params = layer.init(jax.random.key(1), x)
    y, back = jax.vjp(layer.apply, params, x)
    assert y.dtype == jnp.bfloat16
    d_params, d_x = back(jnp.ones_like(y))
    chex.assert_trees_all_equal_dtypes((d_params, d_x), (params, x))


VALUES = jnp.array([[-jnp.inf, -1.0, -0.0], [0.0, 2.0, jnp.inf]])


@pytest.mark.parametrize(
    ("ours", "plain"), [(kernels.relu, jax.nn.relu), (concatenated, lambda x: x)]
)
def test_what_is_stored_and_its_gradient_are_equal(ours, plain):
    chex.assert_trees_all_equal(ours(VALUES), plain(VALUES))
    ours, plain = (jax.grad(lambda x, f=f: jnp.sum(f(x))) for f in (ours, plain))
    chex.assert_trees_all_equal(ours(VALUES), plain(VALUES))


@pytest.mark.parametrize("function", [kernels.relu, concatenated])
def test_what_is_stored_hides_no_nan(function):
    assert jnp.isnan(function(jnp.array([jnp.nan])))
