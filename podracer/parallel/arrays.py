"""Arrays on cores: split, joined, copied and read."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podracer.parallel import watch
from podracer.parallel.cores import AXES, BATCH, REPLACEABLE, SPECS
from podracer.parallel.mesh import CORE, over_hosts


def split(tree: Any, layout: Any, parts: int) -> list[Any]:
    """Equal parts of the batch in a tree of BATCH and SEQUENCE leaves."""

    def part(i: int) -> Any:
        def cut(word, subtree):
            axis = AXES[word]
            return jax.tree.map(lambda x: jnp.split(x, parts, axis)[i], subtree)

        return jax.tree.map(cut, layout, tree)

    return [part(i) for i in range(parts)]


def join(parts: list[Any], layout: Any, mesh: Mesh) -> Any:
    """One tree over the mesh, from a part for each core of this host.

    Each part is transferred directly to its core, and not copied again.
    """
    parts = [
        jax.device_put(part, device)
        for part, device in zip(parts, mesh.local_devices, strict=True)
    ]

    def whole(word, *subtrees):
        sharding = NamedSharding(mesh, SPECS[word])
        axis = AXES[word]

        def leaf(*shards):
            shape = list(shards[0].shape)
            shape[axis] *= mesh.size
            return jax.make_array_from_single_device_arrays(
                tuple(shape), sharding, list(shards)
            )

        return jax.tree.map(leaf, *subtrees)

    return jax.tree.map(whole, layout, *parts)


def by_host(tree: Any, cores: Sequence[jax.Device]) -> Any:
    """The trees of all hosts as one, [hosts, ...], each on the first of its host's `cores`."""
    mesh = over_hosts(cores[:1])
    tree = jax.device_put(jax.tree.map(lambda x: x[None], tree), cores[0])
    return join([tree], jax.tree.map(lambda _: BATCH, tree), mesh)


def of_host(tree: Any) -> Any:
    """This host's own part of a tree made by `by_host`."""
    return jax.tree.map(lambda x: x.addressable_data(0)[0], tree)


def with_fresh(tree: Any, fresh: Any, layout: Any) -> Any:
    """`tree`, with REPLACEABLE parts from `fresh` where their shapes differ, as they do on
    another number of cores."""

    def choose(word, part, other):
        shapes = [jax.tree.map(jnp.shape, x) for x in (part, other)]
        same = word not in REPLACEABLE or shapes[0] == shapes[1]
        return part if same else other

    return jax.tree.map(choose, layout, tree, fresh)


def like(x: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Target for restoring an array of `shape`: laid out as `x`, or whole on one core."""
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    there = x.sharding if shape == x.shape else None  # None: x is a shape itself
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=there or one)


def on_device(tree: Any, device: jax.Device) -> Any:
    """A copy of a SHARED tree on one device, never an alias of its memory.

    An update that reuses the learner's memory would delete an alias.
    """
    shards = jax.tree.map(lambda x: x.addressable_data(0), tree)
    return jax.device_put(shards, device, may_alias=False)


def on_host(tree: Any) -> Any:
    """A SHARED tree as numpy arrays, read from one core, which is faster than from all."""
    return jax.device_get(jax.tree.map(lambda x: x.addressable_data(0), tree))


def of_member(tree: Any, number: int) -> Any:
    """Entry `number` of every leaf [S, ...] of a BATCH tree; with several hosts on the core
    where it lies. Raises IndexError where that is a core of another host.
    """

    def leaf(x: jax.Array) -> jax.Array:
        if getattr(x, "is_fully_addressable", True):  # NumPy's arrays are
            return x[number]
        for shard in x.addressable_shards:
            place = number - _first(shard)
            if 0 <= place < len(shard.data):
                return shard.data[place]
        raise IndexError(f"number {number} of {len(x)} is on no core of this host")

    return jax.tree.map(leaf, tree)


def of_members(members: Sequence[Any], like: Any) -> Any:
    """A BATCH tree laid out as `like`, of this host's `members` in order: undoes `of_member`."""

    def leaf(x: jax.Array, *parts: jax.Array) -> jax.Array:
        first = min(map(_first, x.addressable_shards))
        shards = []
        for shard in x.addressable_shards:
            start = _first(shard) - first
            own = jax.device_put(parts[start : start + len(shard.data)], shard.device)
            shards.append(jnp.stack(own))
        return jax.make_array_from_single_device_arrays(x.shape, x.sharding, shards)

    return jax.tree.map(leaf, like, *members)


def _first(shard: Any) -> int:
    """The number of a shard's first entry."""
    return shard.index[0].start or 0


def everywhere(tree: Any) -> Any:
    """A BATCH tree as numpy arrays, whole on every host; all hosts call it together."""
    leaves = jax.tree.leaves(tree)
    if all(x.is_fully_addressable for x in leaves):
        return jax.device_get(tree)
    watch.moved(waits=True)
    whole = on_host(_gathering(leaves[0].sharding.mesh)(tree))
    watch.moved()
    return whole


@functools.lru_cache(maxsize=8)
def _gathering(mesh: Mesh) -> Callable:
    """(tree) -> the same, whole on every core of the mesh."""
    return jax.jit(
        lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec())
    )


def as_if_shared(tree: Any) -> Any:
    """A tree on one core as if another host had it, too, which never learns of it.

    Only for code that refuses what is of one host alone, and then reads no other part.
    """
    one = jax.tree.leaves(tree)[0].device
    other = next(x for x in jax.devices() if x.process_index != one.process_index)
    sharding = NamedSharding(Mesh(np.array([one, other]), (CORE,)), PartitionSpec())
    return jax.tree.map(
        lambda x: jax.make_array_from_single_device_arrays(x.shape, sharding, [x]), tree
    )
