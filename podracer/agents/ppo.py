"""PPO (Schulman et al. 2017, arXiv:1707.06347): several epochs on each trajectory.

Minibatches are whole unrolls, which a memory can be replayed over: only the order of
environments is shuffled. `shuffle="transitions"` is the textbook's. A time limit is no
termination: the value of the last observation is bootstrapped.

With `minibatches=1`, N cores compute what one core computes, up to rounding. With more,
each core shuffles its own environments: a minibatch has as many samples as on one core,
but other ones.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import optax

from podracer.agent import (
    ActorOutput,
    Agent,
    LearnerState,
    PyTree,
    with_last,
)
from podracer.errors import UserError, check_at_least_one, check_ranges
from podracer.learning import losses, optimizers
from podracer.learning.gradients import mean_gradient
from podracer.networks import Network
from podracer.parallel import AVERAGE, Average


@dataclasses.dataclass(frozen=True)
class Config:
    """PPO's hyperparameters."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step"""
    gae_lambda: float = 0.95
    """lambda of generalized advantage estimation: 0 trusts the values, 1 the rewards"""
    learning_rate: float = 3e-4
    """learning rate at the first update"""
    decay_learning_rate: bool = True
    """decay the learning rate linearly, to 0 at total_steps"""
    total_steps: int | None = None
    """environment steps of the run (the command's --total-steps); None: no decay"""
    epochs: int = 4
    """passes over each trajectory"""
    minibatches: int = 4
    """number of equal parts of a trajectory, one for each step of the optimizer"""
    shuffle: Literal["unrolls", "transitions"] = "unrolls"
    """what minibatches are made of; a recurrent network needs whole unrolls"""
    clip: float = 0.2
    """clip the probability ratio rho to 1 plus or minus this"""
    clip_value: float = math.inf
    """clip the change of a value since acting to plus or minus this; inf: no clipping"""
    value_cost: float = 0.5
    """weight of half the squared value error"""
    entropy_cost: float = 0.01
    """weight of the entropy bonus"""
    normalize_advantages: Literal["trajectory", "minibatch", "none"] = "trajectory"
    """normalize advantages to mean 0 and standard deviation 1, over all cores"""
    max_kl: float = math.inf
    """KL(behaviour, target policy) after an epoch beyond which the update ends; inf: never"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "none"
    """clipping of the rewards that the learner sees"""
    max_gradient_norm: float = 0.5
    """global norm to which larger gradients are scaled down"""
    adam_epsilon: float = 1e-5
    """added to Adam's root"""

    def __post_init__(self):
        costs = "learning_rate", "value_cost", "entropy_cost", "adam_epsilon"
        limits = "clip", "clip_value", "max_kl", "max_gradient_norm"
        check_ranges(self, 0.0, 1.0, "discount_factor", "gae_lambda")
        check_ranges(self, 0.0, math.inf, *costs, *limits)
        check_at_least_one(epochs=self.epochs, minibatches=self.minibatches)


class Extras(NamedTuple):
    """What the learner must know of a decision."""

    log_mu: jax.Array  # [B] log-probability of the action under the behaviour policy
    value: jax.Array  # [B] of the timestep, by the parameters that acted


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: PyTree
    opt_state: optax.OptState
    updates: jax.Array  # int32 [], trajectories learned from


class Batch(NamedTuple):
    """What an update learns from, [T, B, ...]; [B, T, ...] for shuffling."""

    timesteps: dm_env.TimeStep
    action: jax.Array
    log_mu: jax.Array
    value: jax.Array  # by the parameters that acted
    advantage: jax.Array
    target: jax.Array  # value target
    mask: jax.Array  # 0.0 for the void transitions between episodes


def make_agent(config: Config, network: Network, average: Average = AVERAGE) -> Agent:
    """PPO; `network` predicts `networks.Predictions`, extras are `Extras`.

    Raises UserError for a recurrent network with `shuffle="transitions"`, and when traced
    if a core's environments do not split into minibatches.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.scale_by_adam(eps=config.adam_epsilon),
    )
    loss = make_loss(config, network)
    has_memory = bool(
        jax.tree.leaves(jax.eval_shape(partial(network.initial_memory, 1)))
    )
    if has_memory and config.shuffle == "transitions":
        raise UserError(
            "shuffle is transitions, but the network has a memory, which is replayed over "
            "whole unrolls: choose unrolls, or a network without memory"
        )

    def initial_learner_state(key):
        params = network.init(key)
        return LearnerState(Shared(params, optimizer.init(params), jnp.int32(0)), ())

    def actor_params(learner_state):
        return learner_state.shared.params

    def actor_step(keys, params, memory, timestep):
        memory, (policy, value) = network.step(params, memory, timestep)
        action = policy.sample(keys)
        return memory, ActorOutput(action, Extras(policy.log_prob(action), value))

    def greedy_actor_step(keys, params, memory, timestep):
        memory, (policy, value) = network.step(params, memory, timestep)
        action = policy.mode()
        return memory, ActorOutput(action, Extras(policy.log_prob(action), value))

    def last_value(params, trajectory):
        timesteps, _, memory = trajectory
        if has_memory:
            return network.unroll(params, memory, timesteps).value[-1]
        last = jax.tree.map(lambda x: x[-1], timesteps)
        return network.step(params, memory, last)[1].value

    def make_batch(params, trajectory):
        timesteps, (action, (log_mu, value)), _ = trajectory
        reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
        timesteps = timesteps._replace(reward=reward)
        between = losses.transitions(timesteps, config.discount_factor)
        values = with_last(value, last_value(params, trajectory))
        advantage = losses.gae(values, between, config.gae_lambda)
        target = advantage + value
        if config.normalize_advantages == "trajectory":
            advantage = losses.standardize(advantage, between.mask, average)
        seen = jax.tree.map(lambda x: x[:-1], timesteps)
        return Batch(seen, action, log_mu, value, advantage, target, between.mask)

    def learn_minibatch(learning_rate, batch, memory, carry, index):
        """One step of the optimizer, from the sequences `index` of the batch."""
        params, opt_state = carry
        rows, memory = jax.tree.map(
            lambda x: jnp.take(x, index, axis=0), (batch, memory)
        )
        if config.normalize_advantages == "minibatch":
            advantage = losses.standardize(rows.advantage, rows.mask, average)
            rows = rows._replace(advantage=advantage)
        gradients, metrics = mean_gradient(
            loss, params, rows, memory, rows.mask.size, average
        )
        return optimizers.descend(
            optimizer, gradients, opt_state, params, learning_rate
        ), metrics

    def learner_step(key, learner_state, trajectory):
        shared, memory = learner_state.shared, trajectory.actor_state
        batch = make_batch(shared.params, trajectory)
        learning_rate = optimizers.learning_rate(
            config, shared.updates, batch.mask.size * average.cores
        )
        batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch)
        if config.shuffle == "transitions":  # each becomes an unroll of length 1
            batch = jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[2:]), batch)
        sequences = batch.mask.shape[0]
        check_split(sequences, config)
        learn = partial(learn_minibatch, learning_rate, batch, memory)

        def epoch(number, params, opt_state):
            order = jax.random.permutation(jax.random.fold_in(key, number), sequences)
            state, metrics = jax.lax.scan(
                learn, (params, opt_state), order.reshape(config.minibatches, -1)
            )
            return number + 1, *state, jax.tree.map(jnp.mean, metrics)

        def goes_on(carry):
            number, *_, metrics = carry
            if config.max_kl == math.inf:
                return number < config.epochs
            # All cores continue or none does, even where one has seen a NaN.
            return (number < config.epochs) & (average(metrics["kl"]) <= config.max_kl)

        first = epoch(0, shared.params, shared.opt_state)
        epochs, params, opt_state, metrics = jax.lax.while_loop(
            goes_on, lambda carry: epoch(*carry[:3]), first
        )
        metrics |= {
            "learning_rate": learning_rate,
            "epochs": epochs.astype(jnp.float32),
        }
        shared = Shared(params, opt_state, optax.safe_increment(shared.updates))
        return LearnerState(shared, ()), metrics

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        network.initial_memory,
        actor_step,
        greedy_actor_step,
    )


def make_loss(config: Config, network: Network) -> Callable:
    """(params, Batch, memory [B, ...]) -> (loss, its terms), summed over the batch."""

    def loss(params, batch, memory):
        policy, value = network.unroll(params, memory, batch.timesteps)
        log_rho = policy.log_prob(batch.action) - batch.log_mu
        rho = jnp.exp(log_rho)
        clipped_rho = jnp.clip(rho, 1.0 - config.clip, 1.0 + config.clip)
        gain = jnp.minimum(rho * batch.advantage, clipped_rho * batch.advantage)
        error = jnp.square(value - batch.target)
        if config.clip_value < math.inf:
            change = jnp.clip(
                value - batch.value, -config.clip_value, config.clip_value
            )
            error = jnp.maximum(error, jnp.square(batch.value + change - batch.target))
        terms = {
            "loss/policy": -gain,
            "loss/value": 0.5 * error,
            "loss/entropy": -policy.entropy(),
        }
        terms["loss/total"] = (
            terms["loss/policy"]
            + config.value_cost * terms["loss/value"]
            + config.entropy_cost * terms["loss/entropy"]
        )
        terms["rho"] = rho - 1.0
        terms["kl"] = rho - 1.0 - log_rho  # an unbiased estimate from the samples
        terms["clipped"] = (jnp.abs(rho - 1.0) > config.clip).astype(jnp.float32)
        sums = {name: jnp.sum(batch.mask * term) for name, term in terms.items()}
        sums["rho"] += batch.mask.size  # 1 for a void transition
        return sums["loss/total"], sums

    return loss


def check_split(sequences: int, config: Config) -> None:
    """Raises UserError where minibatches would not be equal."""
    if sequences % config.minibatches:
        what = "environments" if config.shuffle == "unrolls" else "transitions"
        raise UserError(
            f"minibatches is {config.minibatches}, which does not divide the {sequences} "
            f"{what} of each core (batch_size over the cores that learn"
            f"{', times unroll_length' if what == 'transitions' else ''}): choose a divisor"
        )
