"""A ring of the newest trajectories, each of one environment in a slot of its own."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.agent import Key, Trajectory
from podracer.errors import UserError

AXES = Trajectory(timesteps=1, outputs=1, actor_state=0)  # of the batch


class Ring(NamedTuple):
    """The newest trajectories of a core, in `slots` of one environment each."""

    trajectories: Trajectory  # as one with a batch of all slots
    next: jax.Array  # int32 [], the slot that is written next
    filled: jax.Array  # int32 [], number of slots in use


def empty(kind: Trajectory, slots: int) -> Ring:
    """A ring for trajectories of this kind, see `shapes`."""

    def zeros(axis, x):
        return jnp.zeros((*x.shape[:axis], slots, *x.shape[axis + 1 :]), x.dtype)

    return Ring(along(zeros, kind), jnp.int32(0), jnp.int32(0))


def insert(ring: Ring, trajectory: Trajectory) -> Ring:
    """The ring with a batch of trajectories, in place of the oldest where it is full.

    Raises UserError where they are of another kind, or more than there are slots.
    """
    slots, count = size(ring), trajectory.timesteps.reward.shape[1]
    _check_kind(ring.trajectories, trajectory)
    if count > slots:
        raise UserError(
            f"replay.capacity is {slots} trajectories on each learner core, fewer than the "
            f"{count} delivered to it at once: choose at least {count} times the cores"
        )
    into = (ring.next + jnp.arange(count)) % slots

    def write(axis, old, new):
        where = (slice(None),) * axis + (into,)
        return old.at[where].set(new, unique_indices=True, mode="promise_in_bounds")

    return Ring(
        along(write, ring.trajectories, trajectory),
        (ring.next + count) % slots,
        jnp.minimum(ring.filled + count, slots),
    )


def sample(key: Key, ring: Ring, count: int) -> jax.Array:
    """Slots in use [count], uniform and with replacement."""
    return jax.random.randint(key, (count,), 0, ring.filled)


def newest(ring: Ring, count: int) -> jax.Array:
    """The slots [count] of the trajectories that were inserted last, in their order."""
    return (ring.next - count + jnp.arange(count)) % size(ring)


def take(ring: Ring, slots: jax.Array) -> Trajectory:
    """The trajectories in these slots [N], as a batch of N."""
    return along(
        lambda axis, x: jnp.take(x, slots, axis, mode="clip"), ring.trajectories
    )


def age_of(ring: Ring, slots: jax.Array) -> jax.Array:
    """How many trajectories were inserted after those in these slots."""
    return (ring.next - 1 - slots) % size(ring)


def size(ring: Ring) -> int:
    """The number of slots."""
    return ring.trajectories.timesteps.reward.shape[1]


def along(function: Callable, *trajectories: Trajectory) -> Trajectory:
    """`function(axis of the batch, *leaves)` for each leaf."""
    return Trajectory(
        *(
            jax.tree.map(lambda *x, axis=axis: function(axis, *x), *parts)
            for axis, parts in zip(AXES, zip(*trajectories, strict=True), strict=True)
        )
    )


def _check_kind(stored: Trajectory, delivered: Trajectory) -> None:
    """Raises UserError unless both are alike, but for the batch."""

    def one(axis, x):
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        return jax.ShapeDtypeStruct(shape, x.dtype)

    expected, actual = (
        dict(jax.tree_util.tree_leaves_with_path(along(one, x)))
        for x in (stored, delivered)
    )
    for path in expected | actual:
        if expected.get(path) != actual.get(path):
            raise UserError(
                f"replay: {jax.tree_util.keystr(path)} of a trajectory is "
                f"{actual.get(path)}, and {expected.get(path)} by the observation_spec and "
                "unroll_length that replay was given: correct these"
            )
