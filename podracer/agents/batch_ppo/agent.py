"""BatchPPO's actor and learner."""

from functools import partial
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dm_env import specs

from podracer.agent import (
    ActorOutput,
    Agent,
    Key,
    LearnerState,
    Metrics,
    PyTree,
    Trajectory,
)
from podracer.agents.batch_ppo.config import Config
from podracer.agents.batch_ppo.loss import (
    Batch,
    adapted,
    chunks,
    estimate,
    make_loss,
    over_time,
)
from podracer.errors import UserError
from podracer.learning import losses, optimizers, whole_episodes
from podracer.learning.gradients import mean_gradient
from podracer.metrics.tally import FAILED
from podracer.networks import Network
from podracer.networks.policies import Policy
from podracer.parallel import AVERAGE, Average
from podracer.transformations import normalizer
from podracer.transformations.normalizer import Normalizer

LOSSES = "loss/total", "loss/policy", "loss/value", "loss/entropy", "gradient_norm"
TOO_LONG = (
    FAILED + "an episode is longer than the agent's memory: raise max_episode_length"
)


class Filters(NamedTuple):
    """Running statistics of all training data."""

    observation: Normalizer
    reward: Normalizer


class Params(NamedTuple):
    """What actors need of the learner."""

    params: PyTree
    observation: Normalizer


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: PyTree
    opt_state: optax.OptState
    filters: Filters
    kl_penalty: jax.Array  # float32 []
    metrics: Metrics  # of the last update


def make_agent(config: Config, network: Network, average: Average = AVERAGE) -> Agent:
    """BatchPPO; `network` predicts `networks.Predictions`, extras are the policy.

    The actor's state holds the episode so far, the local half of the learner's state the
    finished ones. Metrics are those of the last update, and 0 before the first. Raises
    UserError for observations in bytes.
    """
    normalizer.check_no_bytes(network.observation_spec)
    length = config.max_episode_length

    def capacity():
        return -(-config.episodes_per_update // average.cores)

    def row():
        return jax.eval_shape(lambda: example_row(config, network))

    def initial_learner_state(key):
        memory = whole_episodes.initial_memory(row(), length, capacity())
        return LearnerState(initial_shared(config, network, key), memory)

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
        shared, memory = learner_state
        filters = updated(shared.filters, trajectory.timesteps, average)
        shared = shared._replace(filters=filters)
        memory, stored = whole_episodes.store(
            memory, trajectory, trajectory.actor_state[0]
        )
        # All cores learn or none does: an average that some cores skip is a deadlock.
        all_full = average.all(memory.count == capacity())
        shared = jax.lax.cond(
            all_full,
            lambda shared: learn(
                config, network, average, key, shared, whole_episodes.episodes(memory)
            ),
            lambda shared: shared,
            shared,
        )
        memory = memory._replace(count=jnp.where(all_full, 0, memory.count))
        metrics = shared.metrics | {
            "kl_penalty": shared.kl_penalty,
            "trained": all_full.astype(jnp.float32),
            "episodes_waiting": memory.count.astype(jnp.float32),
            "episodes_dropped": stored.dropped,
            "max_episode_length": jnp.float32(length),
            TOO_LONG: stored.too_long.astype(jnp.float32),
            "reward_scale": normalizer.scale(shared.filters.reward),
        }
        return LearnerState(shared, memory), metrics

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        initial_actor_state,
        actor_step,
        greedy_actor_step,
    )


def initial_shared(config: Config, network: Network, key: Key) -> Shared:
    """Before the first update."""
    params = network.init(key)
    filters = Filters(
        normalizer.initial_state(network.observation_spec),
        normalizer.initial_state(specs.Array((), np.float32)),
    )
    return Shared(
        params,
        make_optimizer(config, network).init(params),
        filters,
        jnp.float32(config.kl_penalty),
        dict.fromkeys((*LOSSES, "kl"), jnp.float32(0.0)),
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


def normalized(
    config: Config, network: Network, statistics: Normalizer, timesteps: dm_env.TimeStep
) -> dm_env.TimeStep:
    """Timesteps as the network sees them."""
    observation = normalizer.observe(
        statistics,
        network.observation_spec,
        timesteps.observation,
        config.observation_clip,
    )
    return timesteps._replace(observation=observation)


def updated(filters: Filters, timesteps: dm_env.TimeStep, average: Average) -> Filters:
    """The statistics after these timesteps: what was acted at, and what it earned."""
    acted = ~timesteps.last()[:-1]
    # A lost episode goes from MID to FIRST: that action's reward was lost with it.
    rewarded = acted & ~timesteps.first()[1:]
    observation = jax.tree.map(lambda x: x[:-1], timesteps.observation)
    return Filters(
        normalizer.update(filters.observation, observation, average, acted),
        normalizer.update(filters.reward, timesteps.reward[1:], average, rewarded),
    )


def learn(
    config: Config,
    network: Network,
    average: Average,
    key: Key,
    shared: Shared,
    episodes: Trajectory,
) -> Shared:
    """An update: several epochs on whole episodes, or on their chunks."""
    whole = make_batch(config, network, average, shared, episodes)
    batch = chunks(whole, config.chunk_length or config.max_episode_length)
    count = batch.mask.shape[0]
    each = config.chunks_per_step if config.chunk_length else count
    check_enough(count, each)
    padding = jnp.sum(batch.mask, axis=1) == 0
    enough = steps_with_enough(padding, each, average)
    optimizer = make_optimizer(config, network)
    loss = make_loss(config, network, shared.kl_penalty)

    def step(carry, index):
        params, opt_state, _ = carry
        rows = jax.tree.map(lambda x: jnp.take(x, index, axis=0), batch)
        memory = network.initial_memory(each)  # each chunk starts with none
        gradients, metrics = mean_gradient(loss, params, rows, memory, each, average)
        params, opt_state = optimizers.descend(
            optimizer, gradients, opt_state, params, 1.0
        )
        return params, opt_state, metrics

    def step_if(carry, pick):
        index, is_enough = pick
        return jax.lax.cond(is_enough, step, lambda x, _: x, carry, index), None

    def epoch(carry, key):
        order = jnp.argsort(jax.random.uniform(key, padding.shape) + padding)
        order = order[: enough.size * each].reshape(-1, each)
        return jax.lax.scan(step_if, carry, (order, enough))[0], None

    carry = shared.params, shared.opt_state, shared.metrics
    keys = jax.random.split(key, config.epochs)
    (params, opt_state, metrics), _ = jax.lax.scan(epoch, carry, keys)
    kl = divergence(config, network, params, whole)
    metrics = average(metrics | {"kl": kl})
    return shared._replace(
        params=params,
        opt_state=opt_state,
        kl_penalty=adapted(config, shared.kl_penalty, metrics["kl"]),
        metrics=metrics,
    )


def make_batch(
    config: Config,
    network: Network,
    average: Average,
    shared: Shared,
    episodes: Trajectory,
) -> Batch:
    """Whole episodes with their targets and advantages."""
    reward = normalizer.normalize(
        shared.filters.reward,
        episodes.timesteps.reward,
        center=False,
        clip=config.reward_clip,
    )
    statistics = shared.filters.observation
    timesteps = normalized(config, network, statistics, episodes.timesteps)
    memory = network.initial_memory(reward.shape[1])
    values = network.unroll(shared.params, memory, timesteps).value
    rewarded = timesteps._replace(reward=reward)  # for the returns alone
    target, advantage, mask = estimate(config, rewarded, values)
    weight = jnp.ones_like(mask) if config.padding_in_advantages else mask
    advantage = mask * losses.standardize(advantage, weight, average)

    def padded(number, x):  # a density at padding must be finite
        valid = mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)) > 0
        return jnp.where(valid, x, jnp.full_like(x, number))

    seen = jax.tree.map(lambda x: x[:-1], timesteps)
    action, policy = episodes.outputs
    action = jax.tree.map(partial(padded, 0), action)  # squashed ones are below 1
    policy = jax.tree.map(partial(padded, 1), policy)
    return Batch(seen, action, policy, advantage, target, mask)


def steps_with_enough(padding: jax.Array, each: int, average: Average) -> jax.Array:
    """Which steps of an epoch have enough chunks on every core, bool [steps].

    Chunks of padding alone, bool [chunks], come last. Short episodes may make too few for even
    one step: the first takes what there is.
    """
    count = padding.size
    wanted = each * jnp.arange(1, count // each + 1)
    enough = wanted <= count - jnp.sum(padding)
    return average.all(enough).at[0].set(True)


def divergence(
    config: Config, network: Network, params: PyTree, batch: Batch
) -> jax.Array:
    """Mean KL(behaviour, target policy) of whole episodes."""
    memory = network.initial_memory(batch.mask.shape[1])
    policy = network.unroll(params, memory, batch.timesteps).policy
    kl = batch.mask * batch.policy.kl(policy)
    return jnp.mean(over_time(config, kl, batch.mask))


def make_optimizer(config: Config, network: Network) -> optax.GradientTransformation:
    """Adam; with a value_learning_rate, the value's own parameters have that.

    Raises UserError where the network cannot say which parameters these are.
    """
    rate, value_rate = config.learning_rate, config.value_learning_rate
    if value_rate is None:
        return optax.chain(optax.scale_by_adam(), optax.scale(rate))
    if network.is_value is None:
        raise UserError(
            f"value_learning_rate is {value_rate}, but the network does not say which "
            "parameters are the value's: leave it out, or give the network is_value, see "
            "networks.of_modules"
        )

    def scaled(directions, params):
        return jax.tree.map(
            lambda is_value, x: (value_rate if is_value else rate) * x,
            network.is_value(directions),
            directions,
        )

    return optax.chain(optax.scale_by_adam(), optax.stateless(scaled))


def check_enough(count: int, each: int) -> None:
    """Raises UserError where there are too few chunks for even one step."""
    if count < each:
        raise UserError(
            f"chunks_per_step is {each}, but a core's episodes make {count} chunks at "
            "most: choose fewer, or more episodes_per_update"
        )
