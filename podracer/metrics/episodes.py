"""Returns and lengths of episodes: a pure state machine for both architectures."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Metrics
from podracer.sums import plus


class Episodes(NamedTuple):
    """The episodes in progress, and sums over those finished since `collect`."""

    episode_return: jax.Array  # [B] float32, rewards since FIRST
    episode_length: jax.Array  # [B] int32, environment steps since FIRST
    finished: jax.Array  # [B] int32
    return_sum: jax.Array  # [B] float32
    length_sum: jax.Array  # [B] int32
    lost: tuple[jax.Array, jax.Array]  # of episode_return and return_sum, see `plus`


def initial_state(batch_size: int) -> Episodes:
    """The state where each environment is at FIRST and no episode has finished."""
    zeros, counts = jnp.zeros(batch_size), jnp.zeros(batch_size, jnp.int32)
    return Episodes(zeros, counts, counts, zeros, counts, (zeros, zeros))


def step(state: Episodes, timestep: dm_env.TimeStep) -> Episodes:
    """Counts one timestep [B]; the transition LAST -> FIRST belongs to no episode."""
    continues, ends = ~timestep.first(), timestep.last()
    own = plus(state.episode_return, state.lost[0], timestep.reward)
    episode_return, lost = (jnp.where(continues, x, 0.0) for x in own)
    episode_length = jnp.where(continues, state.episode_length + 1, 0)
    ended = jnp.where(ends, episode_return, 0.0)
    return_sum, sum_lost = plus(state.return_sum, state.lost[1], ended)
    return Episodes(
        episode_return,
        episode_length,
        finished=state.finished + ends,
        return_sum=return_sum,
        length_sum=state.length_sum + jnp.where(ends, episode_length, 0),
        lost=(lost, sum_lost),
    )


def steps(state: Episodes, timesteps: dm_env.TimeStep) -> Episodes:
    """Counts the timesteps [T, B] of an unroll."""
    counted = timesteps._replace(observation=())
    return jax.lax.scan(lambda state, row: (step(state, row), None), state, counted)[0]


class Sums(NamedTuple):
    """Sums over finished episodes; those of several batches can be added."""

    finished: jax.Array  # float32 []
    return_sum: jax.Array  # float32 []
    length_sum: jax.Array  # float32 []


def no_sums() -> Sums:
    """The sums over no episodes."""
    return Sums(*[np.float32(0.0)] * 3)


def collect(state: Episodes) -> tuple[Episodes, Sums]:
    """The state with its sums reset, and the sums since the last call."""
    sums = Sums(
        *(
            jnp.sum(x, dtype=jnp.float32)  # many environments' steps exceed int32
            for x in (state.finished, state.return_sum, state.length_sum)
        )
    )
    return jax.tree.map(jnp.zeros_like, state)._replace(
        episode_return=state.episode_return,
        episode_length=state.episode_length,
        lost=(state.lost[0], jnp.zeros_like(state.lost[1])),
    ), sums


def named(sums: Sums) -> Metrics:
    """The sums under the names of the metrics that `means` makes of them."""
    names = "episodes", "episode_return", "episode_length"
    return dict(zip(names, sums, strict=True))


def means(row: Mapping[str, float]) -> dict[str, float]:
    """A row with the mean return and length in place of their sums; NaN if none finished.

    On the host: JAX_DEBUG_NANS would stop a program that gives NaN.
    """
    count = row["episodes"]
    taken = {
        name: row[name] / count if count else math.nan
        for name in ("episode_return", "episode_length")
    }
    return {**row, **taken}


def finished_share(row: Mapping[str, float], steps: float) -> dict[str, float]:
    """Which share of a row's environment steps are those of the episodes that finished in it.

    The mean over many rows is 1, but where only some episodes end: their mean return then
    says little about the others.
    """
    length = row["episode_length"] if row["episodes"] else 0.0  # else NaN
    return {"finished_share": row["episodes"] * length / steps}
