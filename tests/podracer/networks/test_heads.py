"""Heads with few outputs: on a CPU one column after the other, the same numbers."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from podracer.networks import heads

pytestmark = pytest.mark.core


@pytest.mark.parametrize(("platform", "products"), [("cpu", 3), ("tpu", 1)])
def test_only_a_cpu_multiplies_by_one_column_after_the_other(platform, products):
    layer = heads.dense(3)
    x = jnp.ones((5, 4))
    params = layer.init(jax.random.key(0), x)
    traced = jax.jit(layer.apply).trace(params, x)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.dot_general") == products


@pytest.mark.parametrize("outputs", [1, 2, heads.NARROW, heads.NARROW + 1])
def test_a_narrow_layer_computes_as_a_layer_of_flax(outputs):
    x = jax.random.normal(jax.random.key(0), (7, 3, 5))
    layer, plain = heads.dense(outputs), nn.Dense(outputs)
    params = layer.init(jax.random.key(1), x)
    chex.assert_trees_all_equal(params, plain.init(jax.random.key(1), x))

    def loss(params, x, layer):
        return jnp.sum(jnp.cos(layer.apply(params, x)))

    ours, flax = (
        (module.apply(params, x), jax.grad(loss, (0, 1))(params, x, module))
        for module in (layer, plain)
    )
    chex.assert_trees_all_close(ours, flax, rtol=1e-5, atol=1e-6)
