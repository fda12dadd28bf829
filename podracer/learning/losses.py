"""Returns and losses over [T, B], and the one place that masks LAST -> FIRST.

`x_tm1` is before, `x_t` after the transition at t.
"""

from types import MappingProxyType
from typing import NamedTuple

import chex
import dm_env
import jax
import jax.numpy as jnp

from podracer.agent import Metrics
from podracer.imports import rlax
from podracer.parallel import Average


class Transitions(NamedTuple):
    """The T transitions between T + 1 timesteps; those from LAST, or to FIRST, are void."""

    reward: jax.Array  # [T, B] r_t
    discount: jax.Array  # [T, B] the environment's discount times the agent's
    mask: jax.Array  # [T, B] 1.0, or 0.0 where the transition is void


def make_transitions(timesteps: dm_env.TimeStep, discount_factor: float) -> Transitions:
    """The transitions between timesteps [T + 1, B].

    A terminated episode ends with discount 0. A truncated one keeps its discount, so it is
    bootstrapped from the value of its last observation. So is an episode that was lost
    before its end (see `HostEnvironment`), where FIRST follows MID.
    """
    void = timesteps.last()[:-1] | timesteps.first()[1:]
    mask = 1.0 - void.astype(jnp.float32)
    return Transitions(
        reward=jnp.where(void, 0.0, timesteps.reward[1:]),
        discount=jnp.where(void, 0.0, timesteps.discount[1:] * discount_factor),
        mask=mask,
    )


class VTrace(NamedTuple):
    """V-trace targets and advantages, both constants to the gradient."""

    target: jax.Array  # [T, B] the paper's v_s, the regression target of v_tm1
    advantage: jax.Array  # [T, B] weight of the policy gradient


def vtrace(
    v_tm1: jax.Array,
    v_t: jax.Array,
    transitions: Transitions,
    rho: jax.Array,
    *,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al. 2018, arXiv:1802.01561, eq. 1 and section 4.2).

    Args:
      v_tm1: [T, B] values before the transitions.
      v_t: [T, B] values after them.
      transitions: between the values.
      rho: [T, B] target over behaviour probability of the action taken.
      clip_rho: upper limit of rho in the temporal differences; sets the fixed point.
      clip_c: upper limit of rho in the traces; sets the speed of contraction.
      clip_pg_rho: upper limit of rho in the policy gradient.
    """
    chex.assert_rank([v_tm1, v_t, rho], 2)
    chex.assert_equal_shape([v_tm1, v_t, rho, transitions.reward])
    rho = jnp.where(transitions.mask == 0.0, 0.0, rho)  # it may be infinite there
    v_tm1, v_t, rho = jax.lax.stop_gradient((v_tm1, v_t, rho))
    # rlax clips the traces at 1; a lambda for each step moves that limit to clip_c.
    tiny = jnp.finfo(rho.dtype).tiny
    lambda_ = jnp.minimum(clip_c, rho) / jnp.maximum(jnp.minimum(1.0, rho), tiny)
    errors = jax.vmap(rlax.vtrace, in_axes=(1, 1, 1, 1, 1, 1, None), out_axes=1)(
        v_tm1, v_t, transitions.reward, transitions.discount, rho, lambda_, clip_rho
    )
    target = v_tm1 + errors
    target_t = jnp.concatenate([target[1:], v_t[-1:]])
    q = transitions.reward + transitions.discount * target_t
    return VTrace(target, jnp.minimum(clip_pg_rho, rho) * (q - v_tm1))


def gae(values: jax.Array, transitions: Transitions, lambda_: float) -> jax.Array:
    """Generalized advantages (Schulman et al. 2015, arXiv:1506.02438, eq. 16): [T, B].

    The sum of temporal differences stops at the end of the episode: at the last reward
    where it terminated, at the value of its last observation where it was truncated.

    Args:
      values: [T + 1, B] of all timesteps; constants to the gradient.
      transitions: between the values.
      lambda_: 0 trusts the values, 1 the rewards.
    """
    chex.assert_rank([values, transitions.reward], 2)
    # The last one has no effect.
    decay = lambda_ * jnp.roll(transitions.mask, -1, axis=0)
    v_tm1, v_t = values[:-1], values[1:]
    error = transitions.reward + transitions.discount * v_t - v_tm1

    def step(advantage, row):
        error, discount, decay = row
        advantage = error + discount * decay * advantage
        return advantage, advantage

    # As rlax has it, whose import takes a second of each start of PPO.
    rows = error, transitions.discount, decay
    _, advantage = jax.lax.scan(step, jnp.zeros_like(error[0]), rows, reverse=True)
    return transitions.mask * jax.lax.stop_gradient(advantage)


def lambda_returns(
    v_t: jax.Array, transitions: Transitions, lambda_: float
) -> jax.Array:
    """Lambda-returns (Sutton & Barto 2018, eq. 12.18), targets of what was before: [T, B].

    A truncated episode ends at the value of its last observation. With the largest action
    values they are Peng's Q(lambda) (Gallici et al. 2024, arXiv:2407.04811, section 4).

    Args:
      v_t: [T, B] values after the transitions; constants to the gradient.
      transitions: between the values.
      lambda_: 0 trusts the values, 1 the rewards.
    """
    chex.assert_equal_shape([v_t, transitions.reward])
    # The last one has no effect.
    decay = lambda_ * jnp.roll(transitions.mask, -1, axis=0)
    returns = jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1)
    return jax.lax.stop_gradient(
        returns(transitions.reward, transitions.discount, v_t, decay)
    )


def quantile_loss(value: jax.Array, target: jax.Array, huber: float) -> jax.Array:
    """The quantile Huber loss [...] (arXiv:1710.10044, eq. 10) of quantiles [..., Q].

    Of a single one, the Huber loss: half the squared error up to `huber`, then linear.
    """
    error = target[..., None, :] - value[..., :, None]
    size = jnp.abs(error)
    squared = jnp.minimum(size, huber)
    cost = squared * (size - 0.5 * squared)
    count = value.shape[-1]
    if count > 1:
        share = (jnp.arange(count, dtype=jnp.float32) + 0.5) / count
        share = share.reshape((1,) * (error.ndim - 2) + (count, 1))
        cost *= jnp.abs(share - (error < 0.0))
    return jnp.sum(jnp.mean(cost, -1), -1)


def critics_loss(values: jax.Array, target: jax.Array) -> jax.Array:
    """The sum over critics [K, ..., Q] of their errors to the target [..., Q]: [...].

    Half the squared error of single values, the quantile Huber loss of several quantiles.
    """
    huber = 1.0 if values.shape[-1] > 1 else jnp.inf
    target = jax.lax.stop_gradient(target)
    return jnp.sum(quantile_loss(values, target[None], huber), 0)


def standardize(x: jax.Array, weight: jax.Array, average: Average) -> jax.Array:
    """x with weighted mean 0 and standard deviation 1 over all cores; 0 without weight."""
    count, total = average.total((jnp.sum(weight), jnp.sum(weight * x)))
    count = jnp.maximum(count, 1e-8)  # where all is without weight
    x = weight * (x - total / count)
    variance = average.total(jnp.sum(jnp.square(x))) / count
    return x / (jnp.sqrt(variance) + 1e-8)


class Terms(NamedTuple):
    """What a loss gives for each transition, [T, B] each; nothing is summed yet.

    Whole sequences may have one term each, [B].
    """

    total: jax.Array  # what is minimized, 0.0 where void; reported as loss/total
    means: Metrics  # reported as means over T x B; a loss masks what is void
    mask: jax.Array  # 1.0 where an action was taken, 0.0 where void
    of_actions: Metrics = MappingProxyType({})  # means over the actions that were taken


class Sums(NamedTuple):
    """The terms of a part of a batch, summed; those of several parts can be added."""

    means: Metrics  # all transitions
    of_actions: Metrics  # the actions that were taken
    taken: jax.Array  # float32 [], their number


def reduced(terms: Terms, weight: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """(the sum of the loss, the sums of all terms).

    Args:
      terms: [T, B].
      weight: [B], how many times a trajectory counts; None: once.
    """

    def total(x):
        times = 1.0 if weight is None else jnp.broadcast_to(weight, x.shape)
        return jnp.sum(times * x)

    def taken(x):
        return jnp.where(terms.mask > 0.0, x, 0.0)  # else it may be infinite

    means = terms.means | {"loss/total": terms.total}
    sums = Sums(
        {name: total(x) for name, x in means.items()},
        {name: total(taken(x)) for name, x in terms.of_actions.items()},
        total(terms.mask),
    )
    return sums.means["loss/total"], sums


def means(sums: Sums, count: int, taken: jax.Array) -> Metrics:
    """The metrics of one core: their mean over cores is the mean over what all cores have.

    Args:
      sums: of this core.
      count: number of its transitions, of which each core has as many.
      taken: number of the actions taken, as a mean over cores, which may differ in it.
    """
    of_all = {name: x / count for name, x in sums.means.items()}
    taken = jnp.maximum(taken, 1e-8)  # where nothing but void transitions are
    return of_all | {name: x / taken for name, x in sums.of_actions.items()}


def clip_reward(reward: jax.Array, clipping: str) -> jax.Array:
    """Rewards as the learner sees them; reported returns stay unclipped.

    `abs_one` clips to [-1, 1]; `soft_asymmetric` squashes to (-1.5, 5), losses more than
    gains (Espeholt et al. 2018, DMLab-30); `none` changes nothing.
    """
    if clipping == "abs_one":
        return jnp.clip(reward, -1.0, 1.0)
    if clipping == "soft_asymmetric":
        squashed = jnp.tanh(reward / 5.0)
        return 5.0 * jnp.where(reward < 0.0, 0.3 * squashed, squashed)
    return reward
