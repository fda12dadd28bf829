"""BatchPPO's update: learns new parameters from finished episodes."""

from functools import partial
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dm_env import specs

from podracer.agent import Key, Metrics, PyTree, Trajectory
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
from podracer.learning import losses, optimizers
from podracer.learning.gradients import mean_gradient
from podracer.networks import Network
from podracer.parallel import Average
from podracer.transformations import normalizer
from podracer.transformations.normalizer import Normalizer

LOSSES = "loss/total", "loss/policy", "loss/value", "loss/entropy", "gradient_norm"


class Filters(NamedTuple):
    """Running statistics of all training data."""

    observation: Normalizer
    reward: Normalizer


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: PyTree
    opt_state: optax.OptState
    filters: Filters
    kl_penalty: jax.Array  # float32 []
    metrics: Metrics  # of the last update


def initial_shared(config: Config, network: Network, key: Key) -> Shared:
    """Before the first update."""
    params = network.init(key)
    filters = Filters(
        normalizer.initial_state(normalizer.normalizable(network.observation_spec)),
        normalizer.initial_state(specs.Array((), np.float32)),
    )
    return Shared(
        params,
        make_optimizer(config, network).init(params),
        filters,
        jnp.float32(config.kl_penalty),
        dict.fromkeys((*LOSSES, "kl"), jnp.float32(0.0)),
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


def make_optimizer(config: Config, network: Network) -> optax.GradientTransformation:
    """Adam; with a value_learning_rate, the value's own parameters have that."""
    rate, value_rate = config.learning_rate, config.value_learning_rate
    if value_rate is None:
        return optax.chain(optax.scale_by_adam(), optax.scale(rate))

    def scaled(directions, params):
        return jax.tree.map(
            lambda is_value, x: (value_rate if is_value else rate) * x,
            network.is_value(directions),
            directions,
        )

    return optax.chain(optax.scale_by_adam(), optax.stateless(scaled))


def check_value_params(config: Config, network: Network) -> None:
    """Raises UserError where the network must say which parameters are the value's."""
    if config.value_learning_rate is not None and network.is_value is None:
        raise UserError(
            f"value_learning_rate is {config.value_learning_rate}, but the network does "
            "not say which parameters are the value's: leave it out, or give the network "
            "is_value, see networks.of_modules"
        )


def check_enough(count: int, each: int) -> None:
    """Raises UserError where there are too few chunks for even one step."""
    if count < each:
        raise UserError(
            f"chunks_per_step is {each}, but a core's episodes make {count} chunks at "
            "most: choose fewer, or more episodes_per_update"
        )
