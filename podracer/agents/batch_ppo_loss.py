"""BatchPPO's numbers, and its loss over whole episodes (arXiv:1709.02878, section 6)."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from podracer import losses
from podracer.errors import UserError, check_at_least_one, check_range
from podracer.networks import Network
from podracer.policies import Policy


@dataclasses.dataclass(frozen=True)
class Config:
    """BatchPPO's numbers; the defaults are those of its last version.

    Three quirks of the original can be turned off, and its time limits (which it takes
    for terminations) be bootstrapped.
    """

    episodes_per_update: int = 30
    """that must have finished, over all cores (rounded up to the same number on each)"""
    max_episode_length: int = 1000
    """environment steps that an episode may have: the length of the memory"""
    discount_factor: float = 0.995
    """the agent's gamma, per environment step"""
    gae_lambda: float | None = None
    """of generalised advantages; None: returns less values"""
    learning_rate: float = 1e-4
    """step size of Adam"""
    value_learning_rate: float | None = None
    """of the value's own parameters, None: the same"""
    epochs: int = 25
    """passes over the episodes"""
    chunk_length: int | None = None
    """cut episodes into pieces so long; None: whole episodes"""
    chunks_per_step: int = 20
    """pieces a core learns from in a step of Adam; whole episodes go all at once"""
    kl_target: float = 0.01
    """of KL(behaviour, target policy) after an update"""
    kl_penalty: float = 1.0
    """first weight of the divergence; times or by 1.5 as that misses its target"""
    kl_cutoff_factor: float = 2.0
    """times the target: what is beyond is penalised by its square"""
    kl_cutoff_cost: float = 1000.0
    """weight of that square"""
    entropy_cost: float = 0.0
    """weight of the entropy bonus"""
    observation_clip: float = 5.0
    """deviations that a normalised observation is clipped to"""
    reward_clip: float = 10.0
    """deviations that a normalised reward is clipped to"""
    bootstrap_on_truncation: bool = False
    """value what would have followed a time limit; the original takes it for the end"""
    padding_in_advantages: bool = True
    """(the original's quirk) normalise advantages with the moments of the padding, too"""
    padding_in_bootstrap: bool = True
    """(quirk) let generalised advantages go on into the row after an episode's end"""
    kl_over_max_length: bool = True
    """(quirk) divide sums over an episode by max_episode_length, not by its length"""
    total_steps: int | None = None
    """of the run; no number of this agent depends on it"""

    def __post_init__(self):
        for name in ("discount_factor", "gae_lambda"):
            check_range(name, getattr(self, name) or 0.0, 0.0, 1.0)
        for name in (
            "learning_rate",
            "value_learning_rate",
            "kl_target",
            "kl_penalty",
            "kl_cutoff_factor",
            "kl_cutoff_cost",
            "entropy_cost",
            "observation_clip",
            "reward_clip",
        ):
            check_range(name, getattr(self, name) or 0.0, 0.0)
        names = "episodes_per_update", "max_episode_length", "epochs", "chunks_per_step"
        check_at_least_one(**{name: getattr(self, name) for name in names})
        if self.chunk_length is not None:
            check_at_least_one(chunk_length=self.chunk_length)
            if self.max_episode_length % self.chunk_length:
                raise UserError(
                    f"chunk_length is {self.chunk_length}, which does not divide "
                    f"max_episode_length {self.max_episode_length}: choose a divisor"
                )


class Batch(NamedTuple):
    """Sequences to learn from, [S, K, ...]: whole episodes or pieces of them."""

    timesteps: dm_env.TimeStep
    action: jax.Array
    policy: Policy  # that acted
    advantage: jax.Array
    target: jax.Array  # of the value
    mask: jax.Array  # 0.0 for padding


def make_loss(config: Config, network: Network) -> Callable:
    """(kl_penalty, params, Batch, memory [K, ...]) -> sums over sequences: loss, terms."""

    def loss(kl_penalty, params, batch, memory):
        def mean(x):  # [S, K] -> [K]
            return over_time(config, batch.mask * x, batch.mask)

        policy, value = network.unroll(params, memory, batch.timesteps)
        log_mu = batch.policy.log_prob(batch.action)
        rho = jnp.exp(policy.log_prob(batch.action) - log_mu)
        kl = mean(batch.policy.kl(policy))
        entropy = mean(policy.entropy())
        terms = {
            "loss/policy": -mean(rho * batch.advantage)
            + kl_penalty * kl
            + cutoff(config, kl)
            - config.entropy_cost * entropy,
            "loss/value": mean(0.5 * jnp.square(batch.target - value)),
            "loss/entropy": -entropy,
            "kl": kl,
        }
        terms["loss/total"] = terms["loss/policy"] + terms["loss/value"]
        sums = jax.tree.map(jnp.sum, terms)
        return sums["loss/total"], sums

    return loss


def over_time(config: Config, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Means of x [S, K], which is 0 where masked, over each sequence: [K]."""
    if config.kl_over_max_length:
        return jnp.mean(x, axis=0)
    return jnp.sum(x, axis=0) / jnp.maximum(jnp.sum(mask, axis=0), 1.0)


def cutoff(config: Config, kl: jax.Array) -> jax.Array:
    """The penalty of divergences far beyond the target."""
    beyond = jnp.maximum(kl - config.kl_cutoff_factor * config.kl_target, 0.0)
    return config.kl_cutoff_cost * jnp.square(beyond)


def adapted(config: Config, kl_penalty: jax.Array, kl: jax.Array) -> jax.Array:
    """The weight of the divergence for the next update, from this one's divergence."""
    too_far = kl > 1.3 * config.kl_target
    too_near = kl < 0.7 * config.kl_target
    change = jnp.where(too_far, 1.5, jnp.where(too_near, 1 / 1.5, 1.0))
    return kl_penalty * change


def estimate(
    config: Config, timesteps: dm_env.TimeStep, values: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(value targets, advantages, mask) [L, N] of whole episodes.

    Args:
      config: the agent's.
      timesteps: [L + 1, N], normalised; LAST from an episode's end on.
      values: [L + 1, N].
    """
    last = timesteps.last()
    if not config.bootstrap_on_truncation:
        timesteps = timesteps._replace(
            discount=jnp.where(last, 0.0, timesteps.discount)
        )
    between = losses.transitions(timesteps, config.discount_factor)
    value = values[:-1]
    target = losses.gae(values, between, 1.0) + between.mask * value
    if config.gae_lambda is None:
        return target, target - value, between.mask
    if config.padding_in_bootstrap:
        within = jnp.where(last, 1.0, timesteps.discount).at[-1].set(0.0)
        between = losses.transitions(
            timesteps._replace(discount=within), config.discount_factor
        )
    advantage = losses.gae(values, between, config.gae_lambda)
    return target, advantage, between.mask


def pieces(batch: Batch, length: int) -> Batch:
    """[L, N, ...] as pieces [N * L / length, length, ...]."""

    def leaf(x):
        return jnp.swapaxes(x, 0, 1).reshape(-1, length, *x.shape[2:])

    return jax.tree.map(leaf, batch)
