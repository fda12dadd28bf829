"""One collective for many small arrays, each of which a CPU would wait for."""

from collections.abc import Callable
from typing import Any

import jax
from jax.flatten_util import ravel_pytree

from podracer.kernels.switch import is_on

LARGE = 2**16  # numbers; to concatenate more takes a CPU longer than to meet once more


def together(collective: Callable, tree: Any, axis: str) -> Any:
    """`collective(tree, axis)`, such as the mean over cores of every leaf of a tree."""
    if not is_on("collectives"):
        return collective(tree, axis)
    leaves, structure = jax.tree.flatten(tree)
    flat, unravel = ravel_pytree([x for x in leaves if x.size < LARGE])
    small = iter(unravel(collective(flat, axis)))
    results = [next(small) if x.size < LARGE else collective(x, axis) for x in leaves]
    return structure.unflatten(results)
