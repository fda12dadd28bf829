"""The bandit that chooses a lifetime's hyperparameters (Oh et al. 2020, arXiv:2007.08794).

Each family of tasks has its own. p(arm) is proportional to
exp((mean of the arm's last lifetime returns + bonus / sqrt(lifetimes)) / temperature).
Returns are divided by the largest of the arms' means, so that one temperature suits all.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.agent import Key

LAST = 10  # number of lifetimes in an arm's mean
TEMPERATURE, BONUS = 0.1, 0.2
UNTRIED = 0.01  # number of lifetimes that an untried arm counts as


class Bandit(NamedTuple):
    """F families of tasks, A arms."""

    returns: jax.Array  # float32 [F, A, LAST], the newest of them
    count: jax.Array  # int32 [F, A], lifetimes finished


def initial_state(families: int, arms: int) -> Bandit:
    """No lifetime has finished."""
    return Bandit(
        jnp.zeros((families, arms, LAST)), jnp.zeros((families, arms), jnp.int32)
    )


def logits(bandit: Bandit, family: jax.Array) -> jax.Array:
    """float32 [A], of the arms' probabilities in a family, int32 []."""
    returns, count = bandit.returns[family], bandit.count[family]
    means = jnp.sum(returns, -1) / jnp.clip(count, 1, LAST)  # absent returns are 0
    scale = jnp.maximum(jnp.max(jnp.abs(means)), 1e-6)
    bonus = BONUS / jnp.sqrt(jnp.maximum(count, UNTRIED))
    return (means / scale + bonus) / TEMPERATURE


def choose(key: Key, bandit: Bandit, family: jax.Array) -> jax.Array:
    """An arm for a new lifetime, int32 []."""
    return jax.random.categorical(key, logits(bandit, family)).astype(jnp.int32)


def record(
    bandit: Bandit,
    family: jax.Array,
    arm: jax.Array,
    lifetime_return: jax.Array,
    ended: jax.Array,
) -> Bandit:
    """The bandit after some of P lifetimes ended, all arguments [P], in their order."""
    families, arms, last = bandit.returns.shape
    cell = family * arms + arm
    same = (cell[:, None] == cell[None]) & ended[None]  # [P, P]
    before = jnp.sum(jnp.tril(same, -1), 1)  # of the same arm
    newest = ended & (jnp.sum(same, 1) - before <= last)  # as many as fit
    count = bandit.count.reshape(-1)
    slot = (count[cell] + before) % last
    place = jnp.where(newest, cell * last + slot, families * arms * last)  # or nowhere
    returns = bandit.returns.reshape(-1).at[place].set(lifetime_return, mode="drop")
    count = count.at[cell].add(ended.astype(jnp.int32))
    return Bandit(returns.reshape(bandit.returns.shape), count.reshape(families, arms))
