"""BatchPPO's actor and learner."""

from functools import partial
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer.agent import FAILED, ActorOutput, Agent, LearnerState, Metrics, PyTree
from podracer.agents.batch_ppo.config import Config
from podracer.agents.batch_ppo.update import (
    Filters,
    check_value_params,
    initial_shared,
    learn,
    normalized,
)
from podracer.learning import whole_episodes
from podracer.networks import Network
from podracer.networks.policies import Policy
from podracer.parallel import AVERAGE, Average
from podracer.transformations import normalizer
from podracer.transformations.normalizer import Normalizer

TOO_LONG = (
    FAILED
    + "an episode is longer than the agent's episode buffer: raise max_episode_length"
)


class Params(NamedTuple):
    """What actors need of the learner."""

    params: PyTree
    observation: Normalizer


def make_agent(config: Config, network: Network, average: Average = AVERAGE) -> Agent:
    """BatchPPO; `network` predicts `networks.Predictions`, extras are the policy.

    The actor's state holds the episode so far, the local half of the learner's state the
    finished ones. Metrics are those of the last update, and 0 before the first. Raises
    UserError for observations in bytes, and for a value_learning_rate with a network that
    cannot say which parameters are its value's.
    """
    normalizer.check_no_bytes(network.observation_spec)
    check_value_params(config, network)
    length = config.max_episode_length

    def capacity():
        return -(-config.episodes_per_update // average.cores)

    def row():
        return jax.eval_shape(lambda: example_row(config, network))

    def initial_learner_state(key):
        buffer = whole_episodes.initial_buffer(row(), length, capacity())
        return LearnerState(initial_shared(config, network, key), buffer)

    def initial_actor_state(batch_size):
        running = whole_episodes.initial_running(row(), length, batch_size)
        return running, network.initial_memory(batch_size)

    def actor_step(keys, params, actor_state, timestep):
        running, memory = actor_state
        memory, output = act(config, network, keys, params, memory, timestep)
        running = whole_episodes.append(running, whole_episodes.Row(timestep, output))
        return (running, memory), output

    def greedy_actor_step(keys, params, actor_state, timestep):
        running, memory = actor_state
        memory, policy = decide(config, network, params, memory, timestep)
        return (running, memory), ActorOutput(policy.mode(), policy)

    def learner_step(key, learner_state, trajectory):
        shared, buffer = learner_state
        spec = network.observation_spec
        filters, beyond = updated_filters(
            shared.filters, spec, trajectory.timesteps, average
        )
        shared = shared._replace(filters=filters)
        buffer, stored = whole_episodes.store(
            buffer, trajectory, trajectory.actor_state[0]
        )
        # All cores learn or none does: an average that some cores skip is a deadlock.
        all_full = average.all(buffer.count == capacity())
        shared = jax.lax.cond(
            all_full,
            lambda shared: learn(
                config, network, average, key, shared, whole_episodes.episodes(buffer)
            ),
            lambda shared: shared,
            shared,
        )
        buffer = buffer._replace(count=jnp.where(all_full, 0, buffer.count))
        metrics = shared.metrics | {
            "kl_penalty": shared.kl_penalty,
            "trained": all_full.astype(jnp.float32),
            "episodes_waiting": buffer.count.astype(jnp.float32),
            "episodes_dropped": stored.dropped,
            "max_episode_length": jnp.float32(length),
            TOO_LONG: stored.too_long.astype(jnp.float32),
            "reward_scale": normalizer.scale(shared.filters.reward),
        }
        metrics |= beyond
        return LearnerState(shared, buffer), metrics

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        initial_actor_state,
        actor_step,
        greedy_actor_step,
    )


def actor_params(learner_state: LearnerState) -> Params:
    """What actors need of the learner's state."""
    shared = learner_state.shared
    return Params(shared.params, shared.filters.observation)


def example_row(config: Config, network: Network) -> whole_episodes.Row:
    """One timestep of an episode, with the decision at it."""
    state = LearnerState(initial_shared(config, network, jax.random.key(0)), ())
    return whole_episodes.row_of(
        partial(act, config, network),
        actor_params(state),
        network.initial_memory(1),
        network.observation_spec,
    )


def act(config, network, keys, params, memory, timestep) -> tuple[PyTree, ActorOutput]:
    """A decision [B] that explores, and the memory after it."""
    memory, policy = decide(config, network, params, memory, timestep)
    return memory, ActorOutput(policy.sample(keys), policy)


def decide(config, network, params, memory, timestep) -> tuple[PyTree, Policy]:
    """The policy [B] at a timestep, and the memory after it."""
    seen = normalized(config, network, params.observation, timestep)
    memory, (policy, _) = network.step(params.params, memory, seen)
    return memory, policy


def updated_filters(
    filters: Filters, spec: Any, timesteps: dm_env.TimeStep, average: Average
) -> tuple[Filters, Metrics]:
    """The statistics after these timesteps: what was acted at, and what it earned.

    And the metrics of what cannot be normalized; `spec` is that of an observation.
    """
    acted = ~timesteps.last()[:-1]
    # A lost episode goes from MID to FIRST: that action's reward was lost with it.
    rewarded = acted & ~timesteps.first()[1:]
    observation = jax.tree.map(lambda x: x[:-1], timesteps.observation)
    reward, of_reward = timesteps.reward[1:], specs.Array((), np.float32)
    updated = Filters(
        normalizer.update(filters.observation, observation, average, acted),
        normalizer.update(filters.reward, reward, average, rewarded),
    )
    beyond = normalizer.beyond("observation", observation, spec, acted)
    return updated, beyond | normalizer.beyond("reward", reward, of_reward, rewarded)
