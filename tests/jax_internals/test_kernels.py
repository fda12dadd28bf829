"""What kernels are compiled to: on a CPU in their own way, elsewhere as JAX's operations."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import kernels
from podracer.kernels import loops, products
from tests.podracer.kernels.test_blocking import loss as loss_of_rows
from tests.podracer.kernels.test_blocking import network, unroll_of
from tests.podracer.kernels.test_convolution import flax_max_pool, loss, make, max_pool
from tests.podracer.kernels.test_products import dense

pytestmark = pytest.mark.usefixtures("all_kernels")


def gradient_for(platform: str, outputs: int) -> str:
    """The lowered gradient of a layer's sum."""
    layer = dense(outputs)
    x = jnp.ones((5, 4))
    params = layer.init(jax.random.key(0), x)
    gradient = jax.grad(lambda params, x: jnp.sum(layer.apply(params, x)))
    with kernels.for_all_platforms():
        traced = jax.jit(gradient).trace(params, x)
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.core
@pytest.mark.parametrize(("platform", "count"), [("cpu", 3), ("tpu", 1)])
def test_only_a_cpu_multiplies_by_one_column_after_the_other(platform, count):
    assert gradient_for(platform, 3).count("stablehlo.dot_general") == count


@pytest.mark.core
@pytest.mark.parametrize(("platform", "count"), [("cpu", 1), ("tpu", 0)])
def test_only_a_cpu_writes_the_transposed_inputs(platform, count):
    wide = gradient_for(platform, products.NARROW + 1)
    assert wide.count("stablehlo.optimization_barrier") == count


def in_scan(function, *args):
    """Twice in a loop whose body XLA cannot lift out."""

    def body(args, _):
        result = function(*args)
        return jax.tree.map(lambda a, b: a - 0.1 * b, args, result), result

    return jax.lax.scan(body, args, None, length=2)[1]


@pytest.mark.parametrize("case", ["minatar", "padded by 1", "8x8/4", "4x4/2"])
def test_compiles_to_ordinary_convolutions_in_a_loop(case):
    x, ours, _ = make(case)
    params = ours.init(jax.random.key(1), x)

    def gradients(params, x):
        return jax.grad(loss, argnums=(1, 2))(ours, params, x)

    program = jax.jit(lambda *args: in_scan(gradients, *args))
    text = program.lower(params, x).compile().as_text()
    assert "while(" in text
    assert "conditional" not in text
    layouts = set(re.findall(r"convolution\(.*dim_labels=(\S+?)[,\s]", text))
    assert layouts == {"b01f_01io->b01f"}


@pytest.mark.parametrize("case", ["minatar", "8x8/4"])
@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_is_native_elsewhere(platform, case):
    x, *modules = make(case)
    params = modules[0].init(jax.random.key(1), x)

    def heavy(function, *args):
        """The operations of that name and all that is said of them."""
        gradient = jax.jit(jax.grad(lambda *args: jnp.sum(function(*args) ** 2)))
        with kernels.for_all_platforms():
            lowered = gradient.trace(*args).lower(lowering_platforms=(platform,))
        operations = r"((?:convolution|reduce_window|select_and_scatter)\W.*)"
        text = re.sub(r"[%#]\w+", "", lowered.as_text())  # no names of values
        return sorted(re.findall(operations, text))

    ours, flax = (heavy(lambda x, m=m: m.apply(params, x), x) for m in modules)
    assert ours == flax and len(ours) == 2
    assert heavy(max_pool, x) == heavy(flax_max_pool, x) != []


def test_the_hash_is_no_loop_and_in_no_other_kernel():
    """A loop is slow, and in the kernels that read the numbers it is computed for each."""
    compiled = jax.jit(jax.random.categorical).lower(jax.random.key(0), np.zeros(6))
    text = compiled.compile().as_text()
    assert " while(" not in text
    assert text.count(" conditional(") == 1


@pytest.mark.parametrize(
    ("length", "batch_size", "row_by_row"),
    [(600, 1, 0), (600, 16, 1), (5000, 1, 1), (16, 16, 0), (1, 600, 0), (1, 5000, 1)],
)
def test_only_wide_rows_are_computed_one_by_one(length, batch_size, row_by_row):
    arguments = unroll_of(network(), length, batch_size)
    program = jax.jit(network().unroll).lower(*arguments).as_text()
    assert ("while" in program) == row_by_row


@pytest.mark.parametrize("platforms", ["here", "all"])
def test_a_loss_is_traced_once_for_a_part_and_once_for_the_whole(platforms):
    """The whole is what others than CPUs compute."""
    traced = []

    def counted(params, rows, memory):
        traced.append(rows.shape)
        return loss_of_rows(params, rows, memory)

    rows = jnp.ones((6, 300, 4))
    for_all = platforms == "all"
    with kernels.for_all_platforms() if for_all else contextlib.nullcontext():
        jax.jit(kernels.grad_of_sum(counted)).lower(jnp.ones(4), rows, ())
    assert sorted(traced) == [(300, 1, 4), (300, 6, 4)][: 1 + for_all]


def test_operations_are_counted_as_often_as_they_run():
    def program(x):
        x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=100)
        x = jax.lax.while_loop(lambda x: x > 0.0, lambda x: x - 1.0, x)
        return jax.lax.cond(x > 0.0, jnp.cos, lambda x: x * 2.0 + 1.0, x)

    branches = 1 + 2
    expected = (1 + 100) + (1 + 2) + (2 + 1 + branches)  # 2: the condition as a number
    program = jax.make_jaxpr(program)(1.0).jaxpr
    assert loops._operations(program) == expected, program
