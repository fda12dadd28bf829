"""A loop on an accelerator gives what it gives on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import kernels
from podracer.kernels import loops

IMAGES = jnp.arange(9.0 * 2 * 3 * 3 * 1).reshape(9, 2, 3, 3, 1)


def step(carry, image):
    return carry + image.sum(), (image * carry, jnp.sin(carry))


def on(platform, monkeypatch, **options):
    """(program, its results), with the branch of that platform."""
    monkeypatch.setattr(loops, "by_platform", lambda *x, **known: known[platform](*x))
    traced = jax.jit(lambda x: kernels.scan(step, jnp.float32(0.0), x, **options))
    return str(traced.trace(IMAGES).jaxpr), traced(IMAGES)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("large", "together"), [(3000, 4), (1, 1)])
def test_an_accelerator_takes_several_small_steps_in_an_iteration(
    large, together, recompute, monkeypatch
):
    monkeypatch.setattr(loops, "LARGE", large)
    plain, expected = on("cpu", monkeypatch)
    program, results = on("default", monkeypatch, recompute=recompute)
    assert f"unroll={together}" in program and "unroll=1" in plain
    assert "f32[9,2,9]" in program and "f32[9,2,9]" not in plain  # images are flat
    assert jax.tree.map(jnp.shape, results) == jax.tree.map(jnp.shape, expected)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), results, expected
    )


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("is_complex", [False, True])
def test_a_linear_recurrence_is_the_same_on_any_platform(
    length, is_complex, monkeypatch
):
    random = np.random.default_rng(0)
    decay, inputs = random.normal(size=(2, length, 2, 3)) * (1 + 0.5j * is_complex)
    decay[length // 2, 0] = 0.0  # a reset
    before = random.normal(size=(2, 3)) * (1 + 0.5j * is_complex)
    expected = []
    for a, b in zip(decay, inputs, strict=True):
        expected.append(a * (expected[-1] if expected else before) + b)

    def pair(x):
        real, imaginary = np.float32(np.real(x)), np.float32(np.imag(x))
        return (real, imaginary) if is_complex else real

    for platform in ("cpu", "default"):
        monkeypatch.setattr(loops, "by_platform", lambda *x, p=platform, **f: f[p](*x))
        function = jax.jit(lambda *x: kernels.linear_recurrence(*x))  # not traced yet
        program = str(function.trace(pair(decay), pair(inputs), pair(before)).jaxpr)
        assert ("scan" in program) == (platform == "cpu")
        result = function(pair(decay), pair(inputs), pair(before))
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
            result,
            pair(expected),
        )
