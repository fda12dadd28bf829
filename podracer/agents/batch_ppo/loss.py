"""BatchPPO's loss over whole episodes (arXiv:1709.02878, section 6)."""

from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from podracer.agents.batch_ppo.config import Config
from podracer.learning import losses
from podracer.learning.gradients import Loss
from podracer.networks import Network
from podracer.networks.policies import Policy


class Batch(NamedTuple):
    """Sequences to learn from, [S, K, ...]: whole episodes or chunks of them."""

    timesteps: dm_env.TimeStep
    action: jax.Array
    policy: Policy  # the behaviour policy
    advantage: jax.Array
    target: jax.Array  # value target
    mask: jax.Array  # 0.0 for padding


def make_loss(config: Config, network: Network, kl_penalty: jax.Array) -> Loss:
    """(params, Batch, memory [K, ...]) -> Terms [K], of whole sequences."""

    def loss(params, batch, memory):
        def mean(x):  # [S, K] -> [K]
            return over_time(config, batch.mask * x, batch.mask)

        policy, value = network.unroll(params, memory, batch.timesteps)
        log_mu = batch.policy.log_prob(batch.action)
        log_rho = policy.log_prob(batch.action) - log_mu
        rho = jnp.exp(batch.mask * log_rho)  # of padding, it could overflow
        kl = mean(batch.policy.kl(policy))
        entropy = mean(policy.entropy())
        means = {
            "loss/policy": -mean(rho * batch.advantage)
            + kl_penalty * kl
            + cutoff(config, kl)
            - config.entropy_cost * entropy,
            "loss/value": mean(0.5 * jnp.square(batch.target - value)),
            "loss/entropy": -entropy,
            "kl": kl,
        }
        total = means["loss/policy"] + means["loss/value"]
        return losses.Terms(total, means, batch.mask)

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
    transitions = losses.make_transitions(timesteps, config.discount_factor)
    target = returns(values, transitions)
    if config.gae_lambda is None:
        advantage = target - values[:-1]
    else:
        ends = transitions
        if config.padding_in_bootstrap and not config.bootstrap_on_truncation:
            on = jnp.where(last, 1.0, timesteps.discount).at[-1].set(0.0)
            ends = losses.make_transitions(
                timesteps._replace(discount=on), config.discount_factor
            )
        advantage = losses.gae(values, ends, config.gae_lambda)
    if config.truncate_chunk_returns and config.chunk_length is not None:
        after = jnp.arange(1, len(last))[:, None]  # the timesteps after transitions
        within = jnp.where(after % config.chunk_length == 0, 0.0, transitions.discount)
        target = returns(values, transitions._replace(discount=within))
    return target, advantage, transitions.mask


def returns(values: jax.Array, transitions: losses.Transitions) -> jax.Array:
    """Discounted returns [L, N], bootstrapped from values [L + 1, N] where cut off."""
    return losses.gae(values, transitions, 1.0) + transitions.mask * values[:-1]


def chunks(batch: Batch, length: int) -> Batch:
    """[L, N, ...] cut into chunks [N * L / length, length, ...]."""

    def leaf(x):
        return jnp.swapaxes(x, 0, 1).reshape(-1, length, *x.shape[2:])

    return jax.tree.map(leaf, batch)
