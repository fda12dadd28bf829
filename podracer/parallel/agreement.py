"""Whether the cores still agree on what they share, bit for bit."""

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from podracer.errors import UserError
from podracer.parallel.cores import SHARED, over_cores
from podracer.parallel.mesh import CORE

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}  # by bytes


def checked(reports: Generator[tuple[Any, Any]]) -> Generator[tuple[Any, Any]]:
    """The same pairs (state, metrics), with `check_shared` of the first and the last state."""
    number = 0
    with contextlib.closing(reports):
        for number, (state, metrics) in enumerate(reports, start=1):
            if number == 1:
                check_shared(state)
            yield state, metrics
        if number > 1:
            check_shared(state)  # cores may have begun to differ since


def check_shared(state: Any) -> None:
    """Raises UserError where cores hold different values of a SHARED array.

    JAX does not notice: each core keeps its own. Only checksums leave the cores,
    32 bits an array, so that this is cheap; NaNs are compared by their bits. All hosts come
    here in the same order, and all of them raise.

    Args:
      state: a tree; its SHARED arrays are known by lying whole on each of several cores.
    """
    leaves = [
        (path, x)
        for path, x in jax.tree_util.tree_leaves_with_path(state)
        if isinstance(x, jax.Array) and _is_shared(x)
    ]
    if not leaves:
        return
    paths, arrays = zip(*leaves, strict=True)
    differ = _comparison(Mesh(arrays[0].sharding.mesh.devices, (CORE,)))(arrays)
    for number in np.flatnonzero(np.asarray(differ.addressable_data(0))):
        name = jax.tree_util.keystr(paths[number]).lstrip(".")
        raise UserError(
            f"{name} differs between cores that must agree on it: average the gradients, "
            "and whatever else changes it, with the `average` given to make_agent (see "
            "LearnerState in podracer/agent.py)"
        )


def checksum(x: jax.Array) -> jax.Array:
    """uint32 [] of an array's bits; one changed element always changes it."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag])
    bits = jax.lax.bitcast_convert_type(x, _BITS[x.dtype.itemsize])
    bits = bits.astype(jnp.uint32).ravel()
    # MurmurHash3's finalizer, of each element and its place: it is one to one.
    mixed = bits ^ (jnp.arange(bits.size, dtype=jnp.uint32) * np.uint32(0x9E3779B1))
    mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
    return jnp.sum(mixed ^ (mixed >> 16), dtype=jnp.uint32)


def _is_shared(x: jax.Array) -> bool:
    """Whether it lies whole on each of several cores."""
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding):
        return False
    return sharding.mesh.size > 1 and sharding.is_fully_replicated


@functools.lru_cache(maxsize=8)  # so that a run's checkpoints compile it once
def _comparison(mesh: Mesh) -> Callable:
    """(arrays) -> bool [number of arrays]: which of them differ between cores."""

    def differ(arrays):
        sums = jnp.stack([checksum(x) for x in arrays])
        most = jax.lax.pmax(jnp.concatenate([sums, ~sums]), CORE)  # in one collective
        most, inverted_least = jnp.split(most, 2)
        return most != ~inverted_least

    return over_cores(differ, mesh, (SHARED,), SHARED)
