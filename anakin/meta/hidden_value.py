"""A value function beside an agent, which learns from its trajectories, hidden from it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from dm_env import specs

from podracer import networks
from podracer.agent import Agent, Key, LearnerState, Metrics, PyTree, Trajectory
from podracer.learning import losses, optimizers
from podracer.networks import torsos


class Value(NamedTuple):
    """A value function and how it learns; its state is equal on every core."""

    # (key) -> state
    init: Callable[[Key], PyTree]
    # (state, trajectory) -> values [T + 1, B] of all timesteps
    values: Callable[[PyTree, Trajectory], jax.Array]
    # (state, trajectory) -> (state, metrics): one step towards the lambda-returns
    update: Callable[[PyTree, Trajectory], tuple[PyTree, Metrics]]
    # (state, trajectory) -> generalized advantages [T, B], 0 where void
    advantages: Callable[[PyTree, Trajectory], jax.Array]


class Shared(NamedTuple):
    """An agent's shared half, and the value function beside it."""

    agent: PyTree
    value: PyTree


class _State(NamedTuple):
    params: PyTree
    opt_state: optax.OptState


def make_value(
    observation_spec: Any,
    config: networks.Config,
    learning_rate: float,
    discount_factor: float,
    lambda_: float = 0.95,
) -> Value:
    """A value function with Adam: a table for an observation that is an index, otherwise a
    torso of `config`, which must have no memory."""
    if isinstance(observation_spec, specs.DiscreteArray):
        rows = (int(observation_spec.num_values),)

        def init_params(key):
            return jnp.zeros(rows)

        def apply(params, timesteps):
            return params[timesteps.observation]

    else:
        network = networks.build(observation_spec, config, _Head(config))
        init_params = network.init

        def apply(params, timesteps):
            return network.unroll(
                params, network.initial_memory(timesteps.reward.shape[1]), timesteps
            )

    optimizer = optax.scale_by_adam()

    def init(key):
        params = init_params(key)
        return _State(params, optimizer.init(params))

    def values(state, trajectory):
        return apply(state.params, trajectory.timesteps)

    def advantages(state, trajectory):
        transitions = losses.make_transitions(trajectory.timesteps, discount_factor)
        return losses.gae(values(state, trajectory), transitions, lambda_)

    def update(state, trajectory):
        mask = losses.make_transitions(trajectory.timesteps, discount_factor).mask
        target = advantages(state, trajectory) + values(state, trajectory)[:-1]

        def loss(params):
            error = target - apply(params, trajectory.timesteps)[:-1]
            return 0.5 * jnp.mean(mask * jnp.square(error))

        value, gradients = jax.value_and_grad(loss)(state.params)
        state = optimizers.descend(
            optimizer, gradients, state.opt_state, state.params, learning_rate
        )
        return _State(*state), {"loss/value": value}

    return Value(init, values, update, advantages)


class _Head(nn.Module):
    """(memory, timesteps [T, B, ...]) -> (memory, values [T, B])."""

    config: networks.Config

    @nn.compact
    def __call__(self, memory: tuple, timesteps: dm_env.TimeStep):
        after, features = networks.Branch(self.config)(memory[0], timesteps)
        return (after,), torsos.dense(1)(features)[..., 0]


def beside(agent: Agent, value: Value) -> Agent:
    """The agent, with a value function that its learner cannot see.

    Each `learner_step` trains both on the same trajectory. The metric `loss/value` is the
    value function's.
    """

    def initial_learner_state(key):
        inner = agent.initial_learner_state(key)
        own = value.init(jax.random.fold_in(key, 1))
        return LearnerState(Shared(inner.shared, own), inner.local)

    def learner_step(key, learner_state, trajectory):
        shared, local = learner_state
        inner, metrics = agent.learner_step(
            key, LearnerState(shared.agent, local), trajectory
        )
        own, own_metrics = value.update(shared.value, trajectory)
        learner_state = LearnerState(Shared(inner.shared, own), inner.local)
        return learner_state, metrics | own_metrics

    def actor_params(learner_state):
        return agent.actor_params(inner_state(learner_state))

    return agent._replace(
        initial_learner_state=initial_learner_state,
        learner_step=learner_step,
        weighted_step=None,
        actor_params=actor_params,
    )


def inner_state(learner_state: LearnerState) -> LearnerState:
    """The agent's own, without the value function."""
    return LearnerState(learner_state.shared.agent, learner_state.local)
