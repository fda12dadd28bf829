"""PPO (Schulman et al. 2017, arXiv:1707.06347): several epochs on each trajectory.

Minibatches are whole unrolls, which a memory can be replayed over: only the order of
environments is shuffled. `shuffle="transitions"` shuffles single transitions, as in the paper.
A time limit is not a termination: returns are bootstrapped from the value of the last
observation.

With `minibatches=1`, N cores compute what one core computes, up to rounding. With more,
each core shuffles its own environments: a minibatch has the same number of samples as on
one core, but different ones.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import optax

from podracer import networks
from podracer.agent import (
    ActorOutput,
    Agent,
    LearnerState,
    PyTree,
    Trajectory,
    with_last,
)
from podracer.agents.algorithm import Preset
from podracer.errors import check_ranges
from podracer.learning import losses, minibatches, optimizers
from podracer.learning.gradients import Loss
from podracer.networks import Network, heads, last_predictions
from podracer.parallel import AVERAGE, Average
from podracer.transformations import Interface


@dataclasses.dataclass(frozen=True)
class Config(minibatches.Config):
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
        super().__post_init__()
        costs = "learning_rate", "value_cost", "entropy_cost", "adam_epsilon"
        limits = "clip", "clip_value", "max_kl", "max_gradient_norm"
        check_ranges(self, 0.0, 1.0, "discount_factor", "gae_lambda")
        check_ranges(self, 0.0, math.inf, *costs, *limits)


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
    """What an update learns from, [T, B, ...]."""

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
    minibatches.check_network(network, config)

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

    def learner_step(key, learner_state, trajectory):
        shared = learner_state.shared
        batch = make_batch(config, network, average, shared.params, trajectory)
        learning_rate = optimizers.learning_rate(
            config, shared.updates, batch.mask.size * average.cores
        )
        (params, opt_state), metrics = minibatches.learn(
            make_step(config, network, optimizer, learning_rate, average),
            (shared.params, shared.opt_state),
            batch,
            trajectory.actor_state,
            key,
            config,
            make_enough(config, average),
        )
        metrics["learning_rate"] = learning_rate
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


def make_batch(
    config: Config,
    network: Network,
    average: Average,
    params: PyTree,
    trajectory: Trajectory,
) -> Batch:
    """Advantages and value targets of a trajectory, by the values that it was acted with."""
    timesteps, (action, (log_mu, value)), memory = trajectory
    last = last_predictions(network, params, memory, timesteps)
    reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
    transitions = losses.make_transitions(
        timesteps._replace(reward=reward), config.discount_factor
    )
    values = with_last(value, last.value)
    advantage = losses.gae(values, transitions, config.gae_lambda)
    target = advantage + value
    if config.normalize_advantages == "trajectory":
        advantage = losses.standardize(advantage, transitions.mask, average)
    seen = jax.tree.map(lambda x: x[:-1], timesteps)
    return Batch(seen, action, log_mu, value, advantage, target, transitions.mask)


def make_step(
    config: Config,
    network: Network,
    optimizer: optax.GradientTransformation,
    learning_rate: jax.Array,
    average: Average,
) -> Callable:
    """A step of the optimizer for `minibatches.learn`, from a minibatch of the Batch."""
    descend = minibatches.gradient_step(
        make_loss(config, network), optimizer, learning_rate, average
    )

    def step(state, rows, memory):
        if config.normalize_advantages == "minibatch":
            advantage = losses.standardize(rows.advantage, rows.mask, average)
            rows = rows._replace(advantage=advantage)
        return descend(state, rows, memory)

    return step


def make_enough(config: Config, average: Average) -> Callable | None:
    """(metrics of an epoch) -> whether no other epoch follows; None: all of them do."""
    if config.max_kl == math.inf:
        return None
    # The same on all cores, even where one has seen a NaN.
    return lambda metrics: ~(average(metrics["kl"]) <= config.max_kl)


def make_loss(config: Config, network: Network) -> Loss:
    """(params, Batch [T, B], memory [B, ...]) -> Terms [T, B]."""

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
        means = {
            "loss/policy": -gain,
            "loss/value": 0.5 * error,
            "loss/entropy": -policy.entropy(),
        }
        total = (
            means["loss/policy"]
            + config.value_cost * means["loss/value"]
            + config.entropy_cost * means["loss/entropy"]
        )
        of_actions = {
            "rho": rho,
            "kl": rho - 1.0 - log_rho,  # an unbiased estimate from the samples
            "clipped": (jnp.abs(rho - 1.0) > config.clip).astype(jnp.float32),
        }
        means = {name: batch.mask * x for name, x in means.items()}
        return losses.Terms(batch.mask * total, means, batch.mask, of_actions)

    return loss


_SEPARATE = networks.Config(
    hidden_sizes=(64, 64), activation="tanh", init="orthogonal", separate_value=True
)
_SMALL_PPO = Preset(
    Config(learning_rate=1e-3), unroll_length=32, batch_size=64, network=_SEPARATE
)
PRESETS = {
    "small": _SMALL_PPO,
    # ours: without scaled rewards, CartPole is sometimes learned and lost again
    "cartpole": _SMALL_PPO._replace(interface=Interface(normalize_rewards=True)),
    # ours, for MinAtar's five games
    "minatar": Preset(
        Config(learning_rate=2.5e-3, epochs=4, minibatches=8),
        unroll_length=64,
        batch_size=128,
    ),
    # ours, for continuous actions: Pendulum
    "continuous": Preset(
        Config(learning_rate=1e-3, discount_factor=0.95, epochs=10, entropy_cost=0.0),
        unroll_length=128,
        batch_size=16,
        network=dataclasses.replace(_SEPARATE, head=heads.Config(init_scale=0.01)),
        interface=Interface(normalize_rewards=True),
    ),
    # Schulman et al. 2017, table 3 (MuJoCo): its 2,048 steps from 16 environments, and the
    # normalized observations and rewards of its authors' code
    "mujoco": Preset(
        Config(
            epochs=10,
            minibatches=32,
            shuffle="transitions",
            entropy_cost=0.0,
            normalize_advantages="minibatch",
            decay_learning_rate=False,
        ),
        unroll_length=128,
        batch_size=16,
        network=dataclasses.replace(_SEPARATE, head=heads.Config(init_scale=1e-4)),
        interface=Interface(normalize_observations=True, normalize_rewards=True),
        threads_per_core=1,
        max_lag=0,  # ten epochs move the policy far
    ),
    # MuJoCo Playground's configuration of brax's PPO for the Go1 (arXiv:2502.08844), whose
    # activations are SiLU instead: the critic alone sees what a robot does not know
    "playground": Preset(
        Config(
            discount_factor=0.97,
            epochs=4,
            minibatches=32,
            clip=0.3,
            normalize_advantages="minibatch",
            decay_learning_rate=False,
            max_gradient_norm=1.0,
        ),
        unroll_length=20,
        batch_size=8192,
        network=networks.Config(
            hidden_sizes=(512, 256, 128),
            policy_sees=("state",),
            value_sees=("privileged_state",),
            head=heads.Config(
                deviation="dependent",
                positive="softplus",
                initial_deviation=0.7,
                squash=True,
            ),
        ),
        interface=Interface(normalize_observations=True),
    ),
    # Schulman et al., table 5 (Atari); its squared error is not halved, hence value_cost. Initial
    # weights and a constant clip as in its authors' second version of the code (baselines'
    # ppo2)
    "atari": Preset(
        Config(
            epochs=3,
            learning_rate=2.5e-4,
            clip=0.1,
            value_cost=2.0,
            shuffle="transitions",
            reward_clipping="abs_one",
            normalize_advantages="minibatch",
        ),
        unroll_length=128,
        batch_size=8,
        network=networks.Config(init="orthogonal", head=heads.Config(init_scale=1e-4)),
    ),
}

METRICS = {
    "clipped": ("share", "share of actions whose rho is outside the clipping range"),
}
