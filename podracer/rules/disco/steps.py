"""Where episodes end, as Disco103 sees it: two conventions.

`own` is dm_env's: LAST has its own observation, and the transition LAST -> FIRST is void. In
`jump`, that of the rule's published code, an environment jumps at an end: the timestep LAST
shows the first observation of the next episode, so no transition is void, but the one from
LAST, the first of its episode, is not learned from.
"""

from typing import Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from podracer.agent import Trajectory
from podracer.learning import losses

EpisodeEnds = Literal["own", "jump"]


class Steps(NamedTuple):
    """The T transitions between T + 1 timesteps, all [T, B]."""

    reward: jax.Array  # 0 where void
    discount: jax.Array  # the environment's; 0 where void
    real: jax.Array  # 1.0, or 0.0 where the transition is void
    mask: jax.Array  # 1.0, or 0.0 where it is not learned from
    ends: jax.Array  # bool, whether it ends its episode or is void
    # bool, whether what follows it is of another episode: the meta-network, which reads
    # backwards in time, forgets that
    cut: jax.Array


def steps(timesteps: dm_env.TimeStep, episode_ends: EpisodeEnds) -> Steps:
    """The transitions between timesteps [T + 1, B].

    With `own`, time limits (LAST with discount 1) are ends that keep their discount: the
    value of the last observation is bootstrapped, and nothing else crosses the end.
    """
    last, first = timesteps.last(), timesteps.first()
    if episode_ends == "own":
        reward, discount, real = losses.make_transitions(timesteps, 1.0)
        mask, ends = real, last[1:]
    else:  # FIRST at t > 0 is padding, see `jump`
        real = 1.0 - first[1:].astype(jnp.float32)
        reward, discount = real * timesteps.reward[1:], real * timesteps.discount[1:]
        discount = (discount > 0.0).astype(jnp.float32)
        mask = real * (1.0 - last[:-1].astype(jnp.float32))
        ends = jnp.zeros_like(last[1:])
    ends = ends | (discount == 0.0) | (real == 0.0)
    next_void = jnp.concatenate([real[1:] == 0.0, jnp.zeros_like(ends[:1])])
    return Steps(reward, discount, real, mask, ends, ends | next_void)


def jump(trajectory: Trajectory) -> Trajectory:
    """The trajectory [T + 1, B] of environments that jump at an end.

    Timesteps LAST are left out: the FIRST after each, now marked LAST, has its reward, and
    discount 0. The time that this leaves at the end is filled with void timesteps, marked
    FIRST. A recurrent network would not reset its memory at ends: for others only.
    """
    timesteps, outputs = trajectory.timesteps, trajectory.outputs
    last, first = timesteps.last(), timesteps.first()
    # FIRST at t > 0 follows LAST, or an episode that was lost before its end.
    new = first.at[0].set(False)

    def before(x):
        return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])

    ended = new & before(last)
    reward = jnp.where(ended, before(timesteps.reward), timesteps.reward)
    discount = jnp.where(new, 0.0, timesteps.discount)
    step_type = jnp.where(new, int(dm_env.StepType.LAST), int(dm_env.StepType.MID))
    moved = timesteps._replace(
        reward=reward, discount=discount, step_type=step_type.astype(jnp.int32)
    )
    # Those that are not LAST, then those.
    order = jnp.argsort(last, axis=0, stable=True)
    moved, left_out = jax.tree.map(lambda x: take(x, order), (moved, last))
    void = int(dm_env.StepType.FIRST)
    moved = moved._replace(
        step_type=jnp.where(left_out, void, moved.step_type),
        reward=jnp.where(left_out, 0.0, moved.reward),
        discount=jnp.where(left_out, 0.0, moved.discount),
    )
    # Where the bootstrap timestep T moves forward, so does an output; there is none for T,
    # so the transition from its new place is void, and any output will do.
    order = jnp.minimum(order[:-1], len(order) - 2)
    outputs = jax.tree.map(lambda x: take(x, order), outputs)
    return Trajectory(moved, outputs, trajectory.actor_state)


def take(x: jax.Array, order: jax.Array) -> jax.Array:
    """x [T, B, ...] with each column's rows in the order [S, B]."""
    return jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), 0)
