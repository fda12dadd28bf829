"""TD3, twin delayed deterministic policy gradients (Fujimoto et al. 2018, arXiv:1802.09477).

It learns from replayed transitions: each update is one step of Adam on the critics, and every
`policy_delay`-th one also on the policy, which the target networks then follow. A time limit
is not a termination: returns are bootstrapped from the last observation. Until the first
update, actions are random.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import optax
from dm_env import specs

from podracer.agent import (
    ActorOutput,
    Agent,
    Key,
    LearnerState,
    PyTree,
    Trajectory,
)
from podracer.agents import sac
from podracer.errors import check_at_least_one, check_ranges
from podracer.learning import losses, optimizers
from podracer.learning.gradients import Loss, mean_gradient, sequences
from podracer.networks import critics, heads
from podracer.networks.critics import ActorAndCritics, ActorParams, Params, lowest
from podracer.networks.torsos import dense
from podracer.parallel import AVERAGE, Average

OFF_POLICY = True  # values of actions that any policy took


@dataclasses.dataclass(frozen=True)
class Config:
    """TD3's hyperparameters."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step"""
    learning_rate: float = 3e-4
    """learning rate of the policy"""
    critic_learning_rate: float = 3e-4
    """learning rate of the critics"""
    target_rate: float = 0.005
    """share of the networks that their target networks take over at a time"""
    policy_delay: int = 2
    """number of updates of the critics for one of the policy and the target networks"""
    exploration_noise: float = 0.1
    """standard deviation of the noise on actions, which range from -1 to 1"""
    max_exploration_noise: float | None = None
    """the noise of an episode is drawn between exploration_noise and this; None: it is that"""
    target_noise: float = 0.2
    """standard deviation of the noise on the target policy's actions"""
    max_target_noise: float = 0.5
    """limit of that noise"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "none"
    """clipping of the rewards that the learner sees"""

    def __post_init__(self):
        rates = "learning_rate", "critic_learning_rate"
        noises = "exploration_noise", "target_noise", "max_target_noise"
        check_ranges(self, 0.0, 1.0, "discount_factor", "target_rate")
        check_ranges(self, 0.0, math.inf, *rates, *noises)
        check_ranges(self, self.exploration_noise, math.inf, "max_exploration_noise")
        check_at_least_one(policy_delay=self.policy_delay)


@dataclasses.dataclass(frozen=True)
class NetworkConfig(critics.Config):
    """A deterministic policy and critics, each with a torso of its own."""


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: Params
    opt_state: Params  # of each part
    targets: Params  # the target networks
    updates: jax.Array  # int32 []


class Batch(NamedTuple):
    """What an update learns from, [T, B, ...]."""

    timesteps: dm_env.TimeStep
    action: jax.Array
    target: jax.Array  # [T, B, quantiles] of the values of these actions
    mask: jax.Array  # 0.0 for the void transitions between episodes


def make_agent(
    config: Config, network: ActorAndCritics, average: Average = AVERAGE
) -> Agent:
    """TD3; `network` is of `make_network`, and its policy predicts actions.

    The actor's state is the standard deviation [B] of an episode's noise. Raises UserError
    for a network of another kind.
    """
    critics.check(network, "TD3")
    optimizer = optax.scale_by_adam()
    critic_loss = make_critic_loss(network)

    def initial_learner_state(key):
        params = network.init(key)
        opt_state = Params(*map(optimizer.init, params))
        return LearnerState(Shared(params, opt_state, params, jnp.int32(0)), ())

    def actor_params(learner_state):
        shared = learner_state.shared
        return ActorParams(shared.params.policy, shared.updates == 0)

    def actor_step(keys, params, deviation, timestep):
        keys, episode_keys = jnp.unstack(jax.vmap(jax.random.split)(keys), axis=1)
        low, high = config.exploration_noise, config.max_exploration_noise
        drawn = jax.vmap(jax.random.uniform)(episode_keys)
        drawn = low + drawn * ((low if high is None else high) - low)
        deviation = jnp.where(timestep.first(), drawn, deviation)
        best = network.act(params.policy, timestep)
        noise = jax.vmap(lambda key: jax.random.normal(key, best.shape[1:]))(keys)
        action = jnp.clip(best + deviation[:, None] * noise, -1.0, 1.0)
        action = jnp.where(params.untrained, critics.anything(keys, best), action)
        return deviation, ActorOutput(action, ())

    def greedy_actor_step(keys, params, deviation, timestep):
        return deviation, ActorOutput(network.act(params.policy, timestep), ())

    def weighted_step(key, learner_state, trajectory, weight):
        (params, opt_state, targets, updates) = learner_state.shared
        batch = make_batch(config, network, targets, trajectory, key)

        def gradient(loss, part):
            rows, count = sequences(batch), batch.mask.size
            return mean_gradient(loss, part, rows, (), count, average, weight)

        gradients, metrics = gradient(critic_loss, params.critics)
        values, state = optimizers.descend(
            optimizer,
            gradients,
            opt_state.critics,
            params.critics,
            config.critic_learning_rate,
        )
        # As in the loss, where XLA finds that it is the same.
        before = network.values(params.critics, batch.timesteps, batch.action)
        priority = critics.errors(before, batch.target, batch.mask)
        params = params._replace(critics=values)
        opt_state = opt_state._replace(critics=state)

        def improve(params, opt_state, targets):
            loss = make_policy_loss(network, params.critics)
            gradients, metrics = gradient(loss, params.policy)
            policy, state = optimizers.descend(
                optimizer,
                gradients,
                opt_state.policy,
                params.policy,
                config.learning_rate,
            )
            params = params._replace(policy=policy)
            targets = optax.incremental_update(params, targets, config.target_rate)
            opt_state = opt_state._replace(policy=state)
            # Other updates count 0: the mean over all of them is that over these.
            loss = metrics["loss/policy"] * config.policy_delay
            return params, opt_state, targets, loss

        def keep(*state):
            return *state, jnp.float32(0.0)

        updates = optax.safe_increment(updates)
        is_due = updates % config.policy_delay == 0  # the same on every core
        *state, loss = jax.lax.cond(is_due, improve, keep, params, opt_state, targets)
        return (
            LearnerState(Shared(*state, updates), ()),
            metrics | {"loss/policy": loss},
            priority,
        )

    def learner_step(key, learner_state, trajectory):
        return weighted_step(key, learner_state, trajectory, None)[:2]

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        jnp.zeros,
        actor_step,
        greedy_actor_step,
        weighted_step,
    )


def make_batch(
    config: Config,
    network: ActorAndCritics,
    targets: Params,
    trajectory: Trajectory,
    key: Key,
) -> Batch:
    """The transitions of a trajectory with their targets (sections 4.2 and 5.3)."""
    timesteps, (action, _), _ = trajectory
    reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
    transitions = losses.make_transitions(
        timesteps._replace(reward=reward), config.discount_factor
    )
    before = jax.tree.map(lambda x: x[:-1], timesteps)
    after = jax.tree.map(lambda x: x[1:], timesteps)
    noise = config.target_noise * jax.random.normal(key, action.shape)
    noise = jnp.clip(noise, -config.max_target_noise, config.max_target_noise)
    action_t = jnp.clip(network.policy(targets.policy, after) + noise, -1.0, 1.0)
    value = lowest(network.values(targets.critics, after, action_t))
    target = transitions.reward[..., None] + transitions.discount[..., None] * value
    return Batch(before, action, target, transitions.mask)


def make_critic_loss(network: ActorAndCritics) -> Loss:
    """(critics, Batch [T, B], ()) -> Terms [T, B]."""

    def loss(params, batch, memory):
        values = network.values(params, batch.timesteps, batch.action)
        error = losses.critics_loss(values, batch.target)
        error = batch.mask * error
        of_actions = {"value": jnp.mean(values, (0, -1))}
        return losses.Terms(error, {"loss/value": error}, batch.mask, of_actions)

    return loss


def make_policy_loss(network: ActorAndCritics, values: tuple[PyTree, ...]) -> Loss:
    """(policy, Batch [T, B], ()) -> Terms [T, B], of a policy that maximizes the value of the
    first of the critics `values` (equation 1)."""

    def loss(params, batch, memory):
        action = network.policy(params, batch.timesteps)
        value = network.values(values[:1], batch.timesteps, action)
        total = -batch.mask * jnp.mean(value, (0, -1))
        return losses.Terms(total, {"loss/policy": total}, batch.mask)

    return loss


def make_network(
    observation_spec: Any,
    action_spec: specs.Array,
    config: NetworkConfig = NetworkConfig(),
) -> ActorAndCritics:
    """A policy that predicts actions within -1 and 1, and critics.

    Raises UserError for other actions, for a policy head that is not the default, and as
    `networks.actor_critic` does for observations.
    """
    heads.check_unused(config.head, "TD3", "init_scale")

    def policy_head(features):
        size, scale = action_spec.shape[0], config.head.init_scale
        return jnp.tanh(dense(size, "policy_head", heads.scaled_init(scale))(features))

    return critics.actor_and_critics(
        observation_spec, action_spec, config, policy_head, "TD3"
    )


_NONE = sac.PRESETS["none"]._replace(config=Config())
PRESETS = {
    "none": _NONE,
    # ours
    "pendulum": sac.PRESETS["pendulum"]._replace(
        config=Config(learning_rate=1e-3, critic_learning_rate=1e-3),
        network=NetworkConfig(hidden_sizes=(64, 64)),
    ),
    # Fujimoto et al. 2018, appendix C, with the batches of 256 of their published code, whose
    # 25,000 first steps are random
    "mujoco": _NONE._replace(
        replay=dataclasses.replace(sac.EACH_STEP, minimum_fill=3136)
    ),
    # FastTD3 (arXiv:2505.22642), with quantiles, which need no bounds, in place of its C51
    "parallel": sac.PRESETS["parallel"]._replace(
        config=Config(
            discount_factor=0.97,
            target_rate=0.1,
            exploration_noise=0.001,
            max_exploration_noise=0.4,
            target_noise=0.001,
        ),
        network=NetworkConfig(
            hidden_sizes=(512, 256, 128), layer_norm=True, quantiles=25
        ),
    ),
}
