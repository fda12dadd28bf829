"""Loops over time: an accelerator launches a kernel slower than it computes a small step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from podracer.kernels.platforms import by_platform
from podracer.kernels.switch import is_on

LARGE = 3000  # operations of a step: larger ones, as brax's, are taken singly


def scan(
    step: Callable,
    carry: Any,
    xs: Any,
    *,
    together: int = 4,
    recompute: bool = False,
) -> tuple[Any, Any]:
    """`lax.scan(step, carry, xs)`; on accelerators `together` steps are one iteration.

    With `recompute`, a gradient there computes activations again instead of reading them
    step by step. Large steps have less to gain, and take long to compile: they stay single.
    Images are stored flat there, [T, B, n]: a TPU pads the last two axes of an array to
    8 x 128, so that [10, 10, 4] would take 20 times its size.
    """
    if not is_on("loops"):
        return jax.lax.scan(step, carry, xs)
    # traced once: for a CPU, to be counted and for an accelerator
    step = jax.jit(step, inline=True)

    def on_accelerator(carry, xs):
        first = jax.tree.map(lambda x: x[0], xs)
        results = jax.eval_shape(step, carry, first)[1]
        small = _operations(jax.make_jaxpr(step)(carry, first).jaxpr) <= LARGE
        of_step = partial(_flat_step, step)
        if recompute:
            of_step = jax.checkpoint(of_step, prevent_cse=False)
        carry, rows = jax.lax.scan(of_step, carry, xs, unroll=together if small else 1)
        rows = jax.tree.map(lambda x, y: x.reshape(-1, *y.shape), rows, results)
        return carry, rows

    return by_platform(
        carry, xs, cpu=partial(jax.lax.scan, step), default=on_accelerator
    )


def linear_recurrence(decay: Any, inputs: Any, before: Any) -> Any:
    """h_t = decay_t h_t-1 + inputs_t for all t; `lax.associative_scan`, but step by step on a
    CPU, which computes several times as much in the former and launches nothing in the latter.

    Args:
      decay: [T, ...], or a pair of such arrays: real and imaginary part of complex numbers.
      inputs: as `decay`.
      before: h_-1, [...] or a pair.

    Returns: h [T, ...], or a pair.
    """

    def together(decay, inputs, before):
        start = jax.tree.map(lambda x: x[0], decay)
        start = _product(start, before)
        inputs = jax.tree.map(lambda x, y: x.at[0].add(y), inputs, start)
        return jax.lax.associative_scan(_composed, (decay, inputs))[1]

    def step_by_step(decay, inputs, before):
        def step(h, row):
            decay, inputs = row
            h = jax.tree.map(jnp.add, _product(decay, h), inputs)
            return h, h

        return jax.lax.scan(step, before, (decay, inputs))[1]

    if not is_on("loops"):
        return together(decay, inputs, before)
    return by_platform(decay, inputs, before, cpu=step_by_step, default=together)


def _composed(earlier: tuple[Any, Any], later: tuple[Any, Any]) -> tuple[Any, Any]:
    """Two steps h -> decay h + inputs as one."""
    (decay, inputs), (later_decay, later_inputs) = earlier, later
    sums = jax.tree.map(jnp.add, _product(later_decay, inputs), later_inputs)
    return _product(later_decay, decay), sums


def _product(x: Any, y: Any) -> Any:
    """x times y, arrays or pairs of real and imaginary part."""
    if not isinstance(x, tuple):
        return x * y
    (a, b), (c, d) = x, y
    return a * c - b * d, a * d + b * c


def _flat_step(step: Callable, carry: Any, x: Any) -> tuple[Any, Any]:
    """`step` with its images [B, H, W, C] as [B, n]."""
    carry, row = step(carry, x)
    return carry, jax.tree.map(
        lambda x: x.reshape(x.shape[0], -1) if x.ndim > 3 else x, row
    )


def _operations(program: core.Jaxpr) -> int:
    """How many operations run: of all branches, and one iteration of a `while` loop."""
    total = len(program.eqns)
    for equation in program.eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for x in jax.tree.leaves([*equation.params.values()]):
            if isinstance(x, core.ClosedJaxpr | core.Jaxpr):
                total += times * _operations(getattr(x, "jaxpr", x))
    return total
