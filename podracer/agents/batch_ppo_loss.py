"""BatchPPO's hyperparameters, and its loss over whole episodes (arXiv:1709.02878, section 6)."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from podracer.errors import UserError, check_at_least_one, check_ranges
from podracer.learning import losses
from podracer.networks import Network
from podracer.networks.policies import Policy


@dataclasses.dataclass(frozen=True)
class Config:
    """BatchPPO's hyperparameters; the defaults are those of the original's last version.

    Four quirks of the original have switches. By default a time limit counts as a
    termination, as it does there; see `bootstrap_on_truncation`.
    """

    episodes_per_update: int = 30
    """finished episodes per update, over all cores (rounded up to equal shares)"""
    max_episode_length: int = 1000
    """longest episode, in environment steps; longer ones stop the run"""
    discount_factor: float = 0.995
    """the agent's gamma, per environment step"""
    gae_lambda: float | None = None
    """lambda of generalized advantage estimation; None: returns minus values"""
    learning_rate: float = 1e-4
    """Adam's learning rate"""
    value_learning_rate: float | None = None
    """learning rate of the value's own parameters; None: learning_rate"""
    epochs: int = 25
    """passes over the episodes of an update"""
    chunk_length: int | None = None
    """environment steps of the chunks that episodes are cut into; None: whole episodes"""
    chunks_per_step: int = 20
    """chunks per core and step of Adam, fewer where short episodes make no more; without
    chunk_length a step takes all episodes"""
    kl_target: float = 0.01
    """KL(behaviour, target policy) aimed at after an update"""
    kl_penalty: float = 1.0
    """initial weight of the KL penalty; multiplied or divided by 1.5 to reach kl_target"""
    kl_cutoff_factor: float = 2.0
    """multiple of kl_target beyond which the squared excess is penalized too"""
    kl_cutoff_cost: float = 1000.0
    """weight of that squared excess"""
    entropy_cost: float = 0.0
    """weight of the entropy bonus"""
    observation_clip: float = 5.0
    """limit of normalized observations, in standard deviations"""
    reward_clip: float = 10.0
    """limit of normalized rewards, in standard deviations"""
    bootstrap_on_truncation: bool = False
    """bootstrap from the value at a time limit; the original takes it for a termination"""
    padding_in_advantages: bool = True
    """(quirk of the original) normalize advantages with the moments of the padding, too"""
    padding_in_bootstrap: bool = True
    """(quirk) with gae_lambda, bootstrap past an episode's end from the row after it;
    without effect with bootstrap_on_truncation, which it would undo"""
    kl_over_max_length: bool = True
    """(quirk) divide sums over an episode by max_episode_length, not by its length"""
    truncate_chunk_returns: bool = False
    """(quirk) with chunk_length, fit values to returns that stop at the chunk's end, as the
    original does, instead of the whole episode's"""
    total_steps: int | None = None
    """environment steps of the run; not used by this agent"""

    def __post_init__(self):
        check_ranges(self, 0.0, 1.0, "discount_factor", "gae_lambda")
        check_ranges(
            self,
            0.0,
            math.inf,
            "learning_rate",
            "value_learning_rate",
            "kl_target",
            "kl_penalty",
            "kl_cutoff_factor",
            "kl_cutoff_cost",
            "entropy_cost",
            "observation_clip",
            "reward_clip",
        )
        names = "episodes_per_update", "max_episode_length", "epochs", "chunks_per_step"
        check_at_least_one(**{name: getattr(self, name) for name in names})
        if self.chunk_length is not None:
            check_at_least_one(chunk_length=self.chunk_length)
            if self.max_episode_length % self.chunk_length:
                raise UserError(
                    f"chunk_length is {self.chunk_length}, which does not divide "
                    f"max_episode_length {self.max_episode_length}: choose a divisor"
                )

    @staticmethod
    def upgraded(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields in a config.json as of today: a value_learning_rate of 0 once meant
        None, before there was a truncate_chunk_returns."""
        old = "truncate_chunk_returns" not in values
        if old and values.get("value_learning_rate") == 0:
            return {**values, "value_learning_rate": None}
        return values


class Batch(NamedTuple):
    """Sequences to learn from, [S, K, ...]: whole episodes or chunks of them."""

    timesteps: dm_env.TimeStep
    action: jax.Array
    policy: Policy  # the behaviour policy
    advantage: jax.Array
    target: jax.Array  # value target
    mask: jax.Array  # 0.0 for padding


def make_loss(config: Config, network: Network) -> Callable:
    """(kl_penalty, params, Batch, memory [K, ...]) -> (loss, its terms), summed over K."""

    def loss(kl_penalty, params, batch, memory):
        def mean(x):  # [S, K] -> [K]
            return over_time(config, batch.mask * x, batch.mask)

        policy, value = network.unroll(params, memory, batch.timesteps)
        log_mu = batch.policy.log_prob(batch.action)
        log_rho = policy.log_prob(batch.action) - log_mu
        rho = jnp.exp(batch.mask * log_rho)  # of padding, it could overflow
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
    """The mean of x [S, K] over each sequence: [K]; x is 0 where masked."""
    if config.kl_over_max_length:
        return jnp.mean(x, axis=0)
    return jnp.sum(x, axis=0) / jnp.maximum(jnp.sum(mask, axis=0), 1.0)


def cutoff(config: Config, kl: jax.Array) -> jax.Array:
    """The penalty of KL divergences far beyond the target."""
    beyond = jnp.maximum(kl - config.kl_cutoff_factor * config.kl_target, 0.0)
    return config.kl_cutoff_cost * jnp.square(beyond)


def adapted(config: Config, kl_penalty: jax.Array, kl: jax.Array) -> jax.Array:
    """The KL penalty's weight for the next update, from this one's KL divergence."""
    too_far = kl > 1.3 * config.kl_target
    too_near = kl < 0.7 * config.kl_target
    change = jnp.where(too_far, 1.5, jnp.where(too_near, 1 / 1.5, 1.0))
    return kl_penalty * change


def estimate(
    config: Config, timesteps: dm_env.TimeStep, values: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(value targets, advantages, mask), each [L, N], of whole episodes.

    Args:
      config: the agent's.
      timesteps: [L + 1, N], normalized; LAST from an episode's end on.
      values: [L + 1, N].
    """
    last = timesteps.last()
    if not config.bootstrap_on_truncation:
        timesteps = timesteps._replace(
            discount=jnp.where(last, 0.0, timesteps.discount)
        )
    between = losses.transitions(timesteps, config.discount_factor)
    target = returns(values, between)
    if config.gae_lambda is None:
        advantage = target - values[:-1]
    else:
        ends = between
        if config.padding_in_bootstrap and not config.bootstrap_on_truncation:
            on = jnp.where(last, 1.0, timesteps.discount).at[-1].set(0.0)
            ends = losses.transitions(
                timesteps._replace(discount=on), config.discount_factor
            )
        advantage = losses.gae(values, ends, config.gae_lambda)
    if config.truncate_chunk_returns and config.chunk_length is not None:
        after = jnp.arange(1, len(last))[:, None]  # the timesteps after transitions
        within = jnp.where(after % config.chunk_length == 0, 0.0, between.discount)
        target = returns(values, between._replace(discount=within))
    return target, advantage, between.mask


def returns(values: jax.Array, between: losses.Transitions) -> jax.Array:
    """Discounted returns [L, N], bootstrapped from values [L + 1, N] where cut off."""
    return losses.gae(values, between, 1.0) + between.mask * values[:-1]


def chunks(batch: Batch, length: int) -> Batch:
    """[L, N, ...] cut into chunks [N * L / length, length, ...]."""

    def leaf(x):
        return jnp.swapaxes(x, 0, 1).reshape(-1, length, *x.shape[2:])

    return jax.tree.map(leaf, batch)
