"""Targets for a model that is unrolled K steps from every row (MuZero, arXiv:1911.08265).

Three things can follow a row. An episode that has terminated continues as an absorbing
state, whose reward and value are 0 whatever the action. Of one that was truncated or lost,
and of what comes after the trajectory, nothing is known, so nothing is learned.
"""

from typing import NamedTuple

import chex
import dm_env
import jax
import jax.numpy as jnp

from podracer.agent import with_last
from podracer.learning import losses


class Rows(NamedTuple):
    """What is known of the T + 1 timesteps of a trajectory, [T + 1, B, ...]."""

    reward: jax.Array  # of the transition into the row; 0 if that is void
    value: jax.Array  # n-step return from the row on
    policy: jax.Array  # [T + 1, B, A] of the search
    action: jax.Array  # taken in the row; arbitrary in the last one
    other_action: jax.Array  # uniformly random
    # bool: the transition into the row is LAST -> FIRST, or loses an episode
    void: jax.Array
    last: jax.Array  # bool: LAST
    terminal: jax.Array  # bool: LAST, with discount 0


class Unrolls(NamedTuple):
    """The same from T starts, [K + 1, T, B, ...]: entry k is k steps after the start."""

    action: jax.Array  # into entry k; arbitrary for k = 0
    reward: jax.Array  # of that action
    value: jax.Array
    policy: jax.Array  # [K + 1, T, B, A]
    mask: jax.Array  # float32: 0.0 where reward and value are unknown
    policy_mask: jax.Array  # float32: 0.0 also in absorbing states


def n_step_returns(
    transitions: losses.Transitions, values: jax.Array, steps: int
) -> jax.Array:
    """[T + 1, B]: rewards of the next `steps` transitions, then a discounted value.

    There are fewer before the end of the trajectory and before a void transition, and the
    value there is bootstrapped.

    Args:
      transitions: the T of them.
      values: [T + 1, B] of the search; 0 where an episode has terminated.
      steps: n.
    """
    chex.assert_rank([values, transitions.reward], 2)

    def one_more(_, returns):
        longer = transitions.reward + transitions.discount * returns[1:]
        known = jnp.where(transitions.mask > 0.0, longer, values[:-1])
        return with_last(known, values[-1])

    return jax.lax.fori_loop(0, steps, one_more, values)


def make_rows(
    timesteps: dm_env.TimeStep,
    action: jax.Array,
    other_action: jax.Array,
    policy: jax.Array,
    value: jax.Array,
    *,
    discount_factor: float,
    steps: int,
) -> Rows:
    """The rows of a trajectory.

    Args:
      timesteps: [T + 1, B, ...].
      action: [T, B] taken.
      other_action: [T, B] uniformly random.
      policy: [T + 1, B, A] of the search.
      value: [T + 1, B] of the search.
      discount_factor: the agent's.
      steps: n, of the returns.
    """
    transitions = losses.make_transitions(timesteps, discount_factor)
    last = timesteps.last()
    terminal = last & (timesteps.discount == 0.0)
    value = jnp.where(terminal, 0.0, value)
    nothing = jnp.zeros_like(value[:1])
    return Rows(
        reward=jnp.concatenate([nothing, transitions.reward]),
        value=n_step_returns(transitions, value, steps),
        policy=policy,
        action=with_last(action, action[-1]),
        other_action=with_last(other_action, other_action[0]),
        void=jnp.concatenate([nothing, 1.0 - transitions.mask]) > 0.0,
        last=last,
        terminal=terminal,
    )


def unrolls(rows: Rows, length: int) -> Unrolls:
    """What a model should predict from each of the first T rows, for `length` steps.

    No step starts from LAST, whose action has no effect.
    """
    end = len(rows.reward) - 1  # T
    index = jnp.arange(length + 1)[:, None] + jnp.arange(end)[None]  # [K + 1, T]
    here = jax.tree.map(lambda x: x[jnp.minimum(index, end)], rows)
    before = jax.tree.map(lambda x: x[(index - 1) % end], rows)
    missing = here.void | (index > end)[..., None]

    def step(carry, row):
        known, absorbed = carry  # of the step before
        missing, terminal = row
        known &= absorbed | ~missing
        after = absorbed | (known & terminal)
        return (known, after), (known, absorbed, after)

    first = ~rows.last[:-1], jnp.zeros_like(rows.last[:-1])
    _, later = jax.lax.scan(step, first, (missing[1:], here.terminal[1:]))
    known, absorbed, after = (
        jnp.concatenate([x[None], y])
        for x, y in zip((*first, first[1]), later, strict=True)
    )
    return Unrolls(
        action=jnp.where(absorbed, before.other_action, before.action),
        reward=jnp.where(absorbed, 0.0, here.reward),
        value=jnp.where(after, 0.0, here.value),
        policy=here.policy,
        mask=known.astype(jnp.float32),
        policy_mask=(known & ~after).astype(jnp.float32),
    )
