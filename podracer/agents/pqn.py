"""PQN (Gallici et al. 2024, arXiv:2407.04811): Q-learning in parallel environments.

There is no replay and no target network: layer normalization keeps the learning stable.
The targets are Q(lambda) returns of each trajectory, computed once and learned from in
several epochs of minibatches. A time limit is not a termination: returns are bootstrapped
from the largest action value of the last observation.

With `minibatches=1`, N cores compute what one core computes, up to rounding.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import optax
from dm_env import specs

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
from podracer.learning.exploration import epsilon_after, explore
from podracer.learning.gradients import Loss
from podracer.networks import heads, masks, torsos
from podracer.parallel import AVERAGE, Average


@dataclasses.dataclass(frozen=True)
class Config(minibatches.Config):
    """PQN's hyperparameters."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step"""
    trace_decay: float = 0.65
    """lambda of the returns: 0 trusts the action values, 1 the rewards"""
    learning_rate: float = 2.5e-4
    """learning rate at the first update"""
    decay_learning_rate: bool = False
    """decay the learning rate linearly, to 0 at total_steps"""
    total_steps: int | None = None
    """environment steps of the run (the command's --total-steps); None: no decay"""
    initial_epsilon: float = 1.0
    """probability of a random action at the start"""
    epsilon: float = 0.05
    """probability of a random action once it has decayed"""
    exploration_share: float = 0.1
    """share of total_steps over which the probability decays linearly"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "none"
    """clipping of the rewards that the learner sees"""
    max_gradient_norm: float = 10.0
    """global norm to which larger gradients are scaled down"""

    def __post_init__(self):
        super().__post_init__()
        shares = "initial_epsilon", "epsilon", "exploration_share"
        check_ranges(self, 0.0, 1.0, "discount_factor", "trace_decay", *shares)
        check_ranges(self, 0.0, math.inf, "learning_rate", "max_gradient_norm")


@dataclasses.dataclass(frozen=True)
class NetworkConfig(networks.Config):
    """A torso, a memory and an action value for each action."""

    layer_norm: bool = True
    """layer normalization before each activation function of the torso (not of a resnet)"""


class Params(NamedTuple):
    """What actors need."""

    network: PyTree
    epsilon: jax.Array  # float32 [], probability of a random action


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: PyTree
    opt_state: optax.OptState
    updates: jax.Array  # int32 [], trajectories learned from
    epsilon: jax.Array  # float32 []


class Batch(NamedTuple):
    """What an update learns from, [T, B, ...]."""

    timesteps: dm_env.TimeStep
    action: jax.Array
    target: jax.Array  # of the action's value
    mask: jax.Array  # 0.0 for the void transitions between episodes


def make_agent(
    config: Config, network: networks.Network, average: Average = AVERAGE
) -> Agent:
    """PQN; `network` predicts action values [..., A], see `make_network`.

    `ActorOutput.extras` are the largest action value [B], by the parameters that acted.

    Raises UserError for a recurrent network with `shuffle="transitions"`, and when traced
    if a core's environments do not split into minibatches.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm), optax.scale_by_radam()
    )
    minibatches.check_network(network, config)

    def initial_learner_state(key):
        params, updates = network.init(key), jnp.int32(0)
        opt_state = optimizer.init(params)
        shared = Shared(params, opt_state, updates, epsilon_after(config, 0.0))
        return LearnerState(shared, ())

    def actor_params(learner_state):
        return Params(learner_state.shared.params, learner_state.shared.epsilon)

    def actor_step(keys, params, memory, timestep):
        memory, values = network.step(params.network, memory, timestep)
        action = jax.vmap(explore, (0, 0, None))(keys, values, params.epsilon)
        return memory, ActorOutput(action, jnp.max(values, -1))

    def greedy_actor_step(keys, params, memory, timestep):
        memory, values = network.step(params.network, memory, timestep)
        return memory, ActorOutput(jnp.argmax(values, -1), jnp.max(values, -1))

    def learner_step(key, learner_state, trajectory):
        shared = learner_state.shared
        batch = make_batch(config, network, shared.params, trajectory)
        steps = batch.mask.size * average.cores
        learning_rate = optimizers.learning_rate(config, shared.updates, steps)

        (params, opt_state), metrics = minibatches.learn(
            minibatches.gradient_step(
                make_loss(network), optimizer, learning_rate, average
            ),
            (shared.params, shared.opt_state),
            batch,
            trajectory.actor_state,
            key,
            config,
        )
        updates = optax.safe_increment(shared.updates)
        epsilon = epsilon_after(config, updates.astype(jnp.float32) * steps)
        metrics |= {"learning_rate": learning_rate, "epsilon": shared.epsilon}
        return LearnerState(Shared(params, opt_state, updates, epsilon), ()), metrics

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        network.initial_memory,
        actor_step,
        greedy_actor_step,
    )


def make_batch(
    config: Config, network: networks.Network, params: PyTree, trajectory: Trajectory
) -> Batch:
    """The Q(lambda) returns of a trajectory, by the values that it was acted with."""
    timesteps, (action, largest), memory = trajectory
    reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
    transitions = losses.make_transitions(
        timesteps._replace(reward=reward), config.discount_factor
    )
    last = jnp.max(networks.last_predictions(network, params, memory, timesteps), -1)
    after = with_last(largest, last)[1:]
    target = losses.lambda_returns(after, transitions, config.trace_decay)
    seen = jax.tree.map(lambda x: x[:-1], timesteps)
    return Batch(seen, action, target, transitions.mask)


def make_loss(network: networks.Network) -> Loss:
    """(params, Batch [T, B], memory [B, ...]) -> Terms [T, B]."""

    def loss(params, batch, memory):
        values = network.unroll(params, memory, batch.timesteps)
        # A sum over a mask: the gradient of an index is a scatter, which is slow.
        taken = jax.nn.one_hot(batch.action, values.shape[-1], dtype=bool)
        value = jnp.sum(jnp.where(taken, values, 0.0), -1)
        error = batch.mask * 0.5 * jnp.square(value - batch.target)
        return losses.Terms(error, {}, batch.mask, {"value": value})

    return loss


def make_network(
    observation_spec: Any,
    action_spec: specs.Array,
    config: NetworkConfig = NetworkConfig(),
) -> networks.Network:
    """A network that predicts action values [..., A], -inf where an action is forbidden.

    Raises UserError for actions other than a single choice, for a policy head that is not
    the default, and as `networks.actor_critic`.
    """
    actions = heads.number_of_actions(action_spec, "PQN")
    heads.check_unused(config.head, "PQN")

    def value_head(features):
        return torsos.dense(actions, "value_head")(features)

    network = networks.with_heads(observation_spec, config, value_head)
    return masks.mask_network(network, action_spec, masks.forbid_in_values)


# Gallici et al. 2024: the configurations of its authors' code for CartPole, MinAtar and
# Atari. Their rewards of CartPole are scaled by 0.1.
PRESETS = {
    "small": Preset(
        Config(learning_rate=1e-3, trace_decay=0.95, decay_learning_rate=True),
        unroll_length=32,
        batch_size=64,
    ),
    "cartpole": Preset(
        Config(
            learning_rate=1e-4,
            decay_learning_rate=True,
            trace_decay=0.95,
            epsilon=0.2,
            exploration_share=0.2,
            epochs=4,
            minibatches=16,
            shuffle="transitions",
        ),
        unroll_length=64,
        batch_size=32,
        network=NetworkConfig(hidden_sizes=(256, 256)),
    ),
    "minatar": Preset(
        Config(
            learning_rate=5e-4,
            decay_learning_rate=True,
            epochs=2,
            minibatches=32,
            shuffle="transitions",
        ),
        unroll_length=32,
        batch_size=128,
    ),
    "atari": Preset(
        Config(
            epsilon=0.001,
            epochs=2,
            minibatches=32,
            shuffle="transitions",
            reward_clipping="abs_one",
        ),
        unroll_length=32,
        batch_size=128,
    ),
}

METRICS = {"epsilon": ("", "probability of a random action")}
