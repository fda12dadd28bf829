"""Cores: what is shared, split and local, and gradients that do not grow with cores."""

import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import parallel
from podracer.errors import UserError
from podracer.kernels.collectives import LARGE
from podracer.parallel import BATCH, LOCAL, SHARED

pytestmark = pytest.mark.core


@pytest.mark.parametrize("cores", [1, 2, 4, 8])
def test_an_averaged_gradient_is_the_mean_whatever_the_cores(cores):
    """With shard_map's default checks it would come out `cores` times too large."""

    def gradient(w, x):
        return parallel.AVERAGE(jax.grad(lambda w: jnp.mean(w * x))(w))

    mapped = parallel.over_cores(
        gradient, parallel.make_mesh(cores), (SHARED, BATCH), SHARED
    )
    assert float(mapped(jnp.float32(2.0), jnp.arange(8.0))) == 3.5


def test_average_and_total_of_a_tree():
    def both(x):
        tree = {"a": x, "b": (2 * x,)}
        return parallel.AVERAGE(tree), parallel.AVERAGE.total(tree)

    mesh = parallel.make_mesh(4)
    mean, total = parallel.over_cores(both, mesh, (BATCH,), SHARED)(jnp.arange(4.0))
    assert (mean["a"], mean["b"][0], total["a"], total["b"][0]) == (1.5, 3.0, 6.0, 12.0)


def test_all_is_true_if_every_core_says_so():
    mesh = parallel.make_mesh(4)
    every = parallel.over_cores(parallel.AVERAGE.all, mesh, (BATCH,), SHARED)
    flags = np.array([[True, False, True, True], [True] * 4, [False] * 4]).T
    np.testing.assert_array_equal(every(flags), [[False, True, False]])
    np.testing.assert_array_equal(parallel.AVERAGE.all(jnp.arange(3) > 0), [0, 1, 1])


def test_the_first_of_a_count_from_one_whichever_core_has_it():
    mesh = parallel.make_mesh(4)
    first = parallel.over_cores(parallel.AVERAGE.first, mesh, (LOCAL,), SHARED)
    updates = np.array([[0, 9, 2], [0, 7, 0], [0, 8, 0], [0, 0, 2**32 - 1]], np.uint32)
    np.testing.assert_array_equal(first(updates), [0, 7, 2])


ON_41_CORES = """
from podracer import parallel
parallel.use_cpu_cores(41)
import jax.numpy as jnp

def both(x):
    return parallel.AVERAGE.total(x), parallel.AVERAGE.all(x > 0)

mesh = parallel.make_mesh(41)
program = parallel.over_cores(both, mesh, (parallel.BATCH,), parallel.SHARED)
print(*map(jnp.ravel, program(jnp.full(41, 8.0))))
"""


def test_totals_are_exact_where_means_are_not():
    """The mean of 41 ones is 0.99999994: XLA multiplies by 1 / 41."""
    environment = os.environ | {"XLA_FLAGS": ""}
    command = [sys.executable, "-c", ON_41_CORES]
    said = subprocess.check_output(command, env=environment, text=True, timeout=120)
    assert said == "[328.] [ True]\n"


@pytest.mark.parametrize("sizes", [(2, 3), (LARGE,), (2, LARGE, 3, LARGE)])
def test_leaves_of_any_size_are_averaged(sizes):
    tree = [
        jnp.arange(2.0 * size).reshape(2, size) * (i + 1)
        for i, size in enumerate(sizes)
    ]
    mesh = parallel.make_mesh(2)
    program = parallel.over_cores(parallel.AVERAGE, mesh, (BATCH,), SHARED)
    for mean, x in zip(program(tree), tree, strict=True):
        np.testing.assert_array_equal(mean, x.mean(0, keepdims=True))


def test_average_is_the_identity_outside_and_if_told_so():
    assert parallel.AVERAGE.cores == 1
    assert parallel.AVERAGE({"x": 3.0}) == {"x": 3.0}
    alone = parallel.over_cores(
        parallel.Average(None), parallel.make_mesh(2), (BATCH,), BATCH
    )
    np.testing.assert_array_equal(alone(jnp.arange(4.0)), np.arange(4.0))


def test_local_leaves_have_one_entry_a_core():
    mesh = parallel.make_mesh(4)

    def add(local, split):
        assert local.shape == (3,) and split.shape == (2,)
        return local + split.sum()

    local = parallel.over_cores(add, mesh, (LOCAL, BATCH), LOCAL)(
        jnp.zeros((4, 3)), jnp.arange(8.0)
    )
    np.testing.assert_array_equal(local[:, 0], [1, 5, 9, 13])


def test_core_keys_differ():
    mesh = parallel.make_mesh(4)
    keys = parallel.over_cores(parallel.core_key, mesh, (SHARED,), LOCAL)(
        jax.random.key(0)
    )
    assert len({tuple(x) for x in jax.random.key_data(keys).tolist()}) == 4


@pytest.mark.parametrize("cores", [0, 9])
def test_impossible_cores(cores):
    with pytest.raises(UserError, match=f"cores is {cores}.*choose 1 to 8"):
        parallel.make_mesh(cores)


@pytest.mark.parametrize("cores", [0, -1, 999_999])
def test_numbers_of_cpu_cores_that_cannot_be(cores):
    with pytest.raises(UserError, match=f"cores is {cores}; it must be from 1 to 256"):
        parallel.use_cpu_cores(cores)


def test_cpu_cores_are_asked_for_before_jax_starts(monkeypatch):
    jax.devices()
    with pytest.raises(UserError, match="JAX has started with 8 .*_CPU_DEVICES=3"):
        parallel.use_cpu_cores(3)
    gpu = types.SimpleNamespace(platform="gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    parallel.use_cpu_cores(3)  # what computes is not the CPU
    cpu = types.SimpleNamespace(platform="cpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [cpu] * 3)
    parallel.use_cpu_cores(3)  # as many as there are


def test_a_plan_counts_the_cores_of_the_run():
    def count():
        return jnp.int32(parallel.AVERAGE.cores)

    def cores():
        mesh = parallel.make_mesh(4)
        return int(parallel.over_cores(count, mesh, (), SHARED)())

    with parallel.planned_for(3):
        assert (cores(), parallel.AVERAGE.cores) == (3, 1)
    assert cores() == 4
