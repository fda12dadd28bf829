"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561), after TorchBeast (arXiv:1910.03552).

With every clip at 1 and no policy lag rho is 1, and this is A2C.

The reduction of the loss is a choice because clipping and RMSProp's epsilon see its
scale. `sum` (TorchBeast) and `mean` give the same update on any number of cores; with
`podracer` (as the paper averages) each core's share counts as a batch of its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer import losses, optimizers
from podracer.agent import (
    ActorOutput,
    Agent,
    LearnerState,
    Metrics,
    PyTree,
    Trajectory,
)
from podracer.errors import check_range
from podracer.networks import Network, Predictions
from podracer.parallel import AVERAGE, Average


@dataclasses.dataclass(frozen=True)
class Config:
    """IMPALA's numbers; the defaults are those of TorchBeast's code."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step"""
    learning_rate: float = 4.8e-4
    """step size at the first update"""
    decay_learning_rate: bool = True
    """let the step size fall linearly, to 0 at total_steps"""
    total_steps: int | None = None
    """environment steps of the whole run (the command's --total-steps); None: no decay"""
    reduction: Literal["sum", "mean", "podracer"] = "sum"
    """of the loss over time and batch: the sum or mean over all cores (sum and psum, mean
    and pmean), or the sum on each core averaged over cores (sum and pmean)"""
    value_cost: float = 0.5
    """weight of half the squared value error"""
    entropy_cost: float = 6e-4
    """weight of the entropy bonus"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "abs_one"
    """of the rewards that the learner sees"""
    clip_rho: float = 1.0
    """limit of rho in the value targets; inf: none"""
    clip_c: float = 1.0
    """limit of rho in the traces; inf: none"""
    clip_pg_rho: float = 1.0
    """limit of rho in the policy gradient; inf: none"""
    max_gradient_norm: float = 40.0
    """global norm that gradients are scaled down to"""
    rmsprop_decay: float = 0.99
    """of RMSProp's mean square"""
    rmsprop_epsilon: float = 0.01
    """added to RMSProp's root, outside it, as torch does"""
    momentum: float = 0.0
    """of RMSProp's steps"""

    def __post_init__(self):
        for name in ("discount_factor", "rmsprop_decay", "momentum"):
            check_range(name, getattr(self, name), 0.0, 1.0)
        for name in ("learning_rate", "value_cost", "entropy_cost", "rmsprop_epsilon"):
            check_range(name, getattr(self, name), 0.0)
        for name in ("clip_rho", "clip_c", "clip_pg_rho", "max_gradient_norm"):
            check_range(name, getattr(self, name), 0.0)


class Shared(NamedTuple):
    """What all learner cores agree on."""

    params: PyTree
    opt_state: optax.OptState
    updates: jax.Array  # int32 []


def make_agent(config: Config, network: Network, average: Average = AVERAGE) -> Agent:
    """IMPALA; `network` predicts `networks.Predictions`.

    `ActorOutput.extras` are the behaviour policy [B].
    """
    optimizer = make_optimizer(config)
    loss = make_loss(config)
    # To learn through the acting, activations are computed again rather than stored:
    # they stay in cache, and memory does not grow with the unroll.
    step = jax.checkpoint(network.step)

    def initial_learner_state(key):
        params = network.init(key)
        return LearnerState(Shared(params, optimizer.init(params), jnp.int32(0)), ())

    def actor_params(learner_state):
        return learner_state.shared.params

    def act(params, keys, memory, timestep):
        memory, predictions = step(params, memory, timestep)
        policy = predictions.policy
        return memory, ActorOutput(policy.sample(keys), policy), predictions

    def actor_step(keys, params, memory, timestep):
        return act(params, keys, memory, timestep)[:2]

    def greedy_actor_step(keys, params, memory, timestep):
        memory, (policy, _) = network.step(params, memory, timestep)
        return memory, ActorOutput(policy.mode(), policy)

    def update(learner_state, unroll):
        """One step down the loss; `unroll(params)` says of what trajectory."""

        def objective(params):
            trajectory, predictions, rest = unroll(params)
            total, metrics = loss(predictions, trajectory)
            return total, (metrics, trajectory.timesteps.reward[1:].size, rest)

        shared = learner_state.shared
        gradients, (metrics, steps, rest) = jax.grad(objective, has_aux=True)(
            shared.params
        )
        reduce = average.total if config.reduction == "sum" else average
        gradients = reduce(gradients)
        learning_rate = optimizers.decayed(
            config.learning_rate,
            shared.updates.astype(jnp.float32) * (steps * average.cores),
            config.total_steps if config.decay_learning_rate else None,
        )
        params, opt_state = optimizers.descend(
            optimizer, gradients, shared.opt_state, shared.params, learning_rate
        )
        metrics["gradient_norm"] = optax.tree.norm(gradients)
        metrics["learning_rate"] = learning_rate
        shared = Shared(params, opt_state, optax.safe_increment(shared.updates))
        return LearnerState(shared, ()), metrics, rest

    def learner_step(key, learner_state, trajectory):
        def replay(params):
            memory, timesteps = trajectory.actor_state, trajectory.timesteps
            return trajectory, network.unroll(params, memory, timesteps), ()

        learner_state, metrics, _ = update(learner_state, replay)
        return learner_state, metrics

    def online_step(key, learner_state, interact):
        def live(params):
            return interact(lambda *arguments: act(params, *arguments))

        return update(learner_state, live)

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        network.initial_memory,
        actor_step,
        greedy_actor_step,
        online_step,
    )


def make_loss(
    config: Config,
) -> Callable[[Predictions, Trajectory], tuple[jax.Array, Metrics]]:
    """(predictions [T + 1, B], trajectory) -> (total loss, its terms).

    The total is reduced as `config.reduction` says (for one core), the terms are means.
    """

    def loss(predictions, trajectory):
        timesteps, (action, behaviour_policy) = trajectory.timesteps, trajectory.outputs
        reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
        between = losses.transitions(
            timesteps._replace(reward=reward), config.discount_factor
        )
        policy = jax.tree.map(lambda x: x[:-1], predictions.policy)
        log_pi = policy.log_prob(action)
        log_mu = jax.lax.stop_gradient(behaviour_policy.log_prob(action))
        rho = jnp.exp(log_pi - log_mu)
        target, advantage = losses.vtrace(
            predictions.value[:-1],
            predictions.value[1:],
            between,
            rho,
            clip_rho=config.clip_rho,
            clip_c=config.clip_c,
            clip_pg_rho=config.clip_pg_rho,
        )
        # Of a void transition, target and advantage leave nothing; entropy is masked.
        terms = {
            "policy": -advantage * log_pi,
            "value": 0.5 * jnp.square(target - predictions.value[:-1]),
            "entropy": -between.mask * policy.entropy(),
        }
        total = (
            terms["policy"]
            + config.value_cost * terms["value"]
            + config.entropy_cost * terms["entropy"]
        )
        terms["total"] = total
        metrics = {f"loss/{name}": jnp.mean(term) for name, term in terms.items()}
        metrics["rho"] = jnp.mean(rho)
        return (jnp.mean if config.reduction == "mean" else jnp.sum)(total), metrics

    return loss


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Clip, then RMSProp as torch has it; the caller multiplies by the step size."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.scale_by_rms(
            config.rmsprop_decay, config.rmsprop_epsilon, eps_in_sqrt=False
        ),
        optax.trace(config.momentum) if config.momentum else optax.identity(),
    )
