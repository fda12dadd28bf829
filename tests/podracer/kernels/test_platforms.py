"""A process that has CPUs alone traces their functions alone, and computes the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import kernels
from podracer.kernels.platforms import by_platform

X = jnp.arange(6.0).reshape(2, 3)


def refuse(x):
    raise AssertionError("traced")


def test_only_a_cpus_function_is_traced():
    def traced(**functions):
        return jax.eval_shape(lambda x: by_platform(x, **functions), X).shape

    of_cpu = {"cpu": jnp.sum, "default": refuse}
    assert traced(**of_cpu) == ()
    assert traced(tpu=refuse, default=jnp.sin) == X.shape
    with kernels.for_all_platforms(), pytest.raises(AssertionError, match="traced"):
        traced(**of_cpu)


@pytest.mark.core
@pytest.mark.parametrize("transformed", [lambda f: f, jax.grad])
def test_programs_for_all_platforms_are_the_same_on_a_cpu(transformed):
    def make():
        return transformed(
            lambda x: by_platform(x, cpu=jnp.exp, default=jnp.tanh).sum()
        )

    with kernels.for_all_platforms():
        traced = jax.jit(make()).trace(X)
    here, there = (
        traced.lower(lowering_platforms=(x,)).as_text() for x in ("cpu", "tpu")
    )
    assert "exponential" in here and "tanh" not in here
    assert "exponential" not in there and "tanh" in there
    np.testing.assert_array_equal(traced.lower().compile()(X), jax.jit(make())(X))
