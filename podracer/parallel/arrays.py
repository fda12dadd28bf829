"""Arrays on cores: split, joined, copied and read."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from podracer.parallel.cores import AXES, BATCH, REPLACEABLE, SPECS
from podracer.parallel.mesh import over_hosts


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
