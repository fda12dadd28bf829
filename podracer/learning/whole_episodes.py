"""Whole episodes out of trajectories, for agents that learn from complete episodes.

The episode so far is part of the actor's state, so that a trajectory carries its own prefix
and no learner needs to know which environments it came from. Finished episodes wait in a
buffer, padded to one length.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from podracer import kernels
from podracer.agent import ActorOutput, PyTree, Trajectory
from podracer.transformations import examples


class Row(NamedTuple):
    """A timestep and the decision at it, which is void at LAST."""

    timestep: dm_env.TimeStep
    output: ActorOutput


class Running(NamedTuple):
    """The episodes so far, in B environments."""

    rows: Row  # [B, L + 1, ...] the newest L + 1, in a ring
    newest: jax.Array  # int32 [B] the newest row's place in the ring
    last: jax.Array  # int32 [B] its number in its episode; -1 before the first


class EpisodeBuffer(NamedTuple):
    """Up to N finished episodes."""

    rows: Row  # [N, L + 1, ...]
    length: jax.Array  # int32 [N] transitions; row `length` is the timestep LAST
    count: jax.Array  # int32 []


class Stored(NamedTuple):
    """Which of the episodes that ended in a trajectory could not be stored."""

    dropped: jax.Array  # float32 [], number of those for which there was no space
    too_long: jax.Array  # bool [], whether one has more than L transitions


def row_of(
    actor_step: Callable, params: PyTree, memory: PyTree, observation_spec: Any
) -> Row:
    """An example row of one environment, from one step of the actor."""
    step = examples.one_step(actor_step, params, memory, observation_spec)
    return jax.tree.map(lambda x: x[0], Row(*step))


def initial_running(row: Row, max_length: int, batch_size: int) -> Running:
    """No episodes; `row` is an example of one environment, or its shapes."""
    newest, last = jnp.zeros(batch_size, jnp.int32), jnp.full(batch_size, -1, jnp.int32)
    return Running(_empty(row, batch_size, max_length + 1), newest, last)


def append(running: Running, row: Row) -> Running:
    """Adds a row [B, ...]; FIRST begins a new episode."""
    last = jnp.where(row.timestep.first(), 0, running.last + 1)
    newest = (running.newest + 1) % running.rows.timestep.reward.shape[1]
    return Running(kernels.write_rows(running.rows, row, newest), newest, last)


def initial_buffer(row: Row, max_length: int, capacity: int) -> EpisodeBuffer:
    """No episodes."""
    length = jnp.zeros(capacity, jnp.int32)
    return EpisodeBuffer(_empty(row, capacity, max_length + 1), length, jnp.int32(0))


def store(
    buffer: EpisodeBuffer, trajectory: Trajectory, running: Running
) -> tuple[EpisodeBuffer, Stored]:
    """Adds the episodes that ended in rows 0 to T - 1, in that order, while there is space.

    `running` is that of the trajectory's `actor_state`, before row 0.
    """
    capacity, rows_each = buffer.rows.timestep.reward.shape
    rows = Row(jax.tree.map(lambda x: x[:-1], trajectory.timesteps), trajectory.outputs)
    unroll_length = rows.timestep.reward.shape[0]
    # The row at which each episode began; negative if before this trajectory.
    time = jnp.broadcast_to(
        jnp.arange(unroll_length)[:, None], rows.timestep.reward.shape
    )
    began = jnp.where(rows.timestep.first(), time, -1 - running.last[None])
    began = jax.lax.cummax(began)
    ended = rows.timestep.last()

    def stored():
        # The k-th episode that ended: its prefix, then its rows of the trajectory.
        t, b = jnp.nonzero(ended, size=capacity, fill_value=(0, 0))
        start = began[t, b]
        number = jnp.arange(rows_each)
        source = start[:, None] + number[None]  # [N, L + 1] rows of the trajectory
        oldest = running.newest - running.last  # place of an episode's row 0
        place_of = (oldest[b][:, None] + number[None]) % rows_each

        def gather(finished, prefix, x):
            new = x[jnp.clip(source, 0, unroll_length - 1), b[:, None]]
            before = (source < 0).reshape(*source.shape, *(1,) * (new.ndim - 2))
            episode = jnp.where(before, prefix[b[:, None], place_of], new)
            return finished.at[slot].set(episode, mode="drop")

        place = jnp.arange(capacity)
        slot = jnp.where(place < ended.sum(), buffer.count + place, capacity)
        return EpisodeBuffer(
            jax.tree.map(gather, buffer.rows, running.rows, rows),
            buffer.length.at[slot].set(t - start, mode="drop"),
            jnp.minimum(buffer.count + ended.sum(), capacity),
        )

    after = jax.lax.cond(ended.any(), stored, lambda: buffer)
    finished = ended.sum() - (after.count - buffer.count)
    too_long = jnp.any(time - began >= rows_each)
    return after, Stored(finished.astype(jnp.float32), too_long)


def episodes(buffer: EpisodeBuffer) -> Trajectory:
    """All N episodes as one trajectory of L transitions [L + 1, N, ...].

    The padding after an episode's end holds rows of other episodes and is marked LAST, so
    that losses mask it.
    """
    timesteps, outputs = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), buffer.rows)
    number = jnp.arange(timesteps.reward.shape[0])
    ended = number[:, None] >= buffer.length[None]
    step_type = jnp.where(ended, jnp.int32(dm_env.StepType.LAST), timesteps.step_type)
    timesteps = timesteps._replace(step_type=step_type)
    return Trajectory(timesteps, jax.tree.map(lambda x: x[:-1], outputs), ())


def _empty(row: Row, *shape: int) -> PyTree:
    return jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), row)
