"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905).

It learns from replayed transitions: each update is one step of Adam on the critics, the policy
and the temperature at once, all from the parameters before it. A time limit is not a
termination: returns are bootstrapped from the last observation. Until the first update,
actions are random.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import optax
from dm_env import specs

from podracer.agent import ActorOutput, Agent, Key, LearnerState, PyTree, Trajectory
from podracer.agents.algorithm import Preset
from podracer.errors import UserError, check_ranges
from podracer.learning import losses, optimizers
from podracer.learning.gradients import Loss, mean_gradient, sequences
from podracer.networks import critics, heads
from podracer.networks.critics import ActorAndCritics, ActorParams, lowest
from podracer.parallel import AVERAGE, Average
from podracer.transformations import Interface
from podracer.transformations.replay import Config as Replay

OFF_POLICY = True  # values of actions that any policy took


@dataclasses.dataclass(frozen=True)
class Config:
    """SAC's hyperparameters."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step"""
    learning_rate: float = 3e-4
    """learning rate of the policy"""
    critic_learning_rate: float = 3e-4
    """learning rate of the critics and of the temperature"""
    target_rate: float = 0.005
    """share of the critics that their target networks take over at each update"""
    initial_temperature: float = 1.0
    """weight of the policy's entropy beside the reward, at the start"""
    learn_temperature: bool = True
    """adjust the temperature so that the entropy is the target entropy"""
    target_entropy: float = -1.0
    """entropy of the policy that the temperature aims at, in nats for each number of an
    action, which ranges from -1 to 1"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "none"
    """clipping of the rewards that the learner sees"""

    def __post_init__(self):
        check_ranges(self, 0.0, 1.0, "discount_factor", "target_rate")
        check_ranges(self, 0.0, math.inf, "learning_rate", "critic_learning_rate")
        check_ranges(self, 1e-8, math.inf, "initial_temperature")
        check_ranges(self, -math.inf, math.inf, "target_entropy")


# The deviation's bounds are CleanRL's, e^-5 and e^2.
_HEAD = heads.Config(
    deviation="dependent",
    positive="bounded",
    min_deviation=math.exp(-5.0),
    max_deviation=math.exp(2.0),
    squash=True,
)


@dataclasses.dataclass(frozen=True)
class NetworkConfig(critics.Config):
    """A squashed Gaussian policy and critics, each with a torso of its own."""

    head: heads.Config = _HEAD


class Learned(NamedTuple):
    """What Adam's step is on."""

    policy: PyTree
    critics: tuple[PyTree, ...]
    log_temperature: jax.Array  # float32 []


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: Learned
    opt_state: Learned  # of each part
    targets: tuple[PyTree, ...]  # the critics' target networks
    updates: jax.Array  # int32 []


class Batch(NamedTuple):
    """What an update learns from, [T, B, ...]."""

    timesteps: dm_env.TimeStep
    action: jax.Array
    target: jax.Array  # [T, B, quantiles] of the values of these actions
    mask: jax.Array  # 0.0 for the void transitions between episodes
    noise: jax.Array  # of the actions that the policy would take


def make_agent(
    config: Config, network: ActorAndCritics, average: Average = AVERAGE
) -> Agent:
    """SAC; `network` is of `make_network`, and its policy a `TanhGaussian`.

    Raises UserError for a network of another kind.
    """
    critics.check(network, "SAC")
    optimizer = optax.scale_by_adam()
    loss = make_loss(config, network)

    def initial_learner_state(key):
        policy, values = network.init(key)
        temperature = jnp.log(jnp.float32(config.initial_temperature))
        params = Learned(policy, values, temperature)
        opt_state = Learned(*map(optimizer.init, params))
        return LearnerState(Shared(params, opt_state, values, jnp.int32(0)), ())

    def actor_params(learner_state):
        shared = learner_state.shared
        return ActorParams(shared.params.policy, shared.updates == 0)

    def actor_step(keys, params, actor_state, timestep):
        chosen = network.act(params.policy, timestep).sample(keys)
        action = jnp.where(params.untrained, critics.anything(keys, chosen), chosen)
        return actor_state, ActorOutput(action, ())

    def greedy_actor_step(keys, params, actor_state, timestep):
        return actor_state, ActorOutput(network.act(params.policy, timestep).mode(), ())

    def weighted_step(key, learner_state, trajectory, weight):
        shared = learner_state.shared
        batch = make_batch(config, network, shared, trajectory, key)
        gradients, metrics = mean_gradient(
            loss,
            shared.params,
            sequences(batch),
            (),
            batch.mask.size,
            average,
            weight,
        )
        rates = Learned(
            config.learning_rate,
            config.critic_learning_rate,
            config.critic_learning_rate * config.learn_temperature,
        )
        steps = [
            optimizers.descend(optimizer, *part)
            for part in zip(
                gradients, shared.opt_state, shared.params, rates, strict=True
            )
        ]
        params, opt_state = (Learned(*x) for x in zip(*steps, strict=True))
        targets = optax.incremental_update(
            params.critics, shared.targets, config.target_rate
        )
        metrics |= {"entropy_temperature": jnp.exp(shared.params.log_temperature)}
        updates = optax.safe_increment(shared.updates)
        # As in the loss, where XLA finds that it is the same.
        values = network.values(shared.params.critics, batch.timesteps, batch.action)
        priority = critics.errors(values, batch.target, batch.mask)
        shared = Shared(params, opt_state, targets, updates)
        return LearnerState(shared, ()), metrics, priority

    def learner_step(key, learner_state, trajectory):
        return weighted_step(key, learner_state, trajectory, None)[:2]

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        lambda batch_size: (),
        actor_step,
        greedy_actor_step,
        weighted_step,
    )


def make_batch(
    config: Config,
    network: ActorAndCritics,
    shared: Shared,
    trajectory: Trajectory,
    key: Key,
) -> Batch:
    """The transitions of a trajectory with their targets (equations 2 and 3, section 4.2)."""
    timesteps, (action, _), _ = trajectory
    reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
    transitions = losses.make_transitions(
        timesteps._replace(reward=reward), config.discount_factor
    )
    before = jax.tree.map(lambda x: x[:-1], timesteps)
    after = jax.tree.map(lambda x: x[1:], timesteps)
    noise = jax.random.normal(key, (2, *action.shape))
    action_t, log_prob = network.policy(shared.params.policy, after).reparametrized(
        noise[0]
    )
    value = lowest(network.values(shared.targets, after, action_t))
    value -= (jnp.exp(shared.params.log_temperature) * log_prob)[..., None]
    target = transitions.reward[..., None] + transitions.discount[..., None] * value
    return Batch(before, action, target, transitions.mask, noise[1])


def make_loss(config: Config, network: ActorAndCritics) -> Loss:
    """(Learned, Batch [T, B], ()) -> Terms [T, B] (equations 5, 9 and 18).

    Each of the three parts is constant to the losses of the others.
    """

    def loss(params, batch, memory):
        values = network.values(params.critics, batch.timesteps, batch.action)
        error = losses.critics_loss(values, batch.target)

        policy = network.policy(params.policy, batch.timesteps)
        action, log_prob = policy.reparametrized(batch.noise)
        constant = jax.lax.stop_gradient(params.critics)
        value = network.values(constant, batch.timesteps, action)
        temperature = jnp.exp(params.log_temperature)
        bonus = jax.lax.stop_gradient(temperature) * log_prob
        surprise = bonus - jnp.min(jnp.mean(value, -1), 0)

        target = config.target_entropy * network.action_size
        excess = -temperature * jax.lax.stop_gradient(log_prob + target)

        terms = {
            "loss/value": batch.mask * error,
            "loss/policy": batch.mask * surprise,
            "loss/temperature": batch.mask * excess,
        }
        of_actions = {"value": jnp.mean(values, (0, -1)), "entropy": -log_prob}
        return losses.Terms(sum(terms.values()), terms, batch.mask, of_actions)

    return loss


def make_network(
    observation_spec: Any,
    action_spec: specs.Array,
    config: NetworkConfig = NetworkConfig(),
) -> ActorAndCritics:
    """A policy over actions within -1 and 1, and critics.

    Raises UserError for other actions, for a head that is not squashed, and as
    `networks.actor_critic` does for observations.
    """
    if not config.head.squash:
        raise UserError(
            "head.squash is false, and SAC needs the policy within the bounds of actions: "
            "leave it on"
        )

    def policy_head(features):
        return heads.PolicyHead(
            *heads.kind_of(action_spec), config.head, name="policy_head"
        )(features)

    return critics.actor_and_critics(
        observation_spec, action_spec, config, policy_head, "SAC"
    )


# An update for each step, from 256 transitions: 32 trajectories. Unrolls of 8 store less than
# single transitions do: of Pendulum 35 bytes each rather than 56.
EACH_STEP = Replay(
    capacity=2**17,  # 1,048,576 transitions
    samples_per_insert=256.0,
    minimum_fill=640,
    fresh=False,
    updates=64,
)
_NONE = Preset(
    Config(), unroll_length=8, batch_size=8, replay=EACH_STEP, threads_per_core=1
)
PRESETS = {
    "none": _NONE,
    # ours
    "pendulum": _NONE._replace(
        config=Config(learning_rate=1e-3, critic_learning_rate=1e-3),
        # the returns are within 3 % of those with 256 x 256, in a seventh of the time
        network=NetworkConfig(hidden_sizes=(64, 64)),
        replay=dataclasses.replace(EACH_STEP, capacity=2**13, minimum_fill=64),
    ),
    # Haarnoja et al. 2018, table 1, with the critics' learning rate and the 5,000 first steps
    # of CleanRL (docs.cleanrl.dev/rl-algorithms/sac), whose results are the best known
    "mujoco": _NONE._replace(config=Config(critic_learning_rate=1e-3)),
    # For thousands of environments: large batches, few updates, distributional critics,
    # normalized layers and observations, a fast target. The sizes are FastTD3's
    # (arXiv:2505.22642); quantiles, which need no bounds, in place of its C51
    "parallel": Preset(
        Config(discount_factor=0.97, target_rate=0.1, initial_temperature=0.01),
        unroll_length=8,
        batch_size=1024,
        network=NetworkConfig(
            hidden_sizes=(512, 256, 128), layer_norm=True, quantiles=25
        ),
        interface=Interface(normalize_observations=True),
        replay=Replay(
            capacity=2**17,
            samples_per_insert=64.0,
            minimum_fill=2**13,
            fresh=False,
            updates=16,
        ),
        threads_per_core=1,
    ),
}

METRICS = {
    "loss/temperature": ("", "mean loss of SAC's temperature per step"),
    "entropy_temperature": (
        "reward / nat",
        "weight of the policy's entropy beside the reward",
    ),
}
