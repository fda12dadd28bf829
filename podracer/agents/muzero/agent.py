"""MuZero's actor and learner."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podracer.agent import (
    FAILED,
    ActorOutput,
    Agent,
    LearnerState,
    PyTree,
    Trajectory,
    with_last,
)
from podracer.agents.muzero.config import Config
from podracer.agents.muzero.search import Search, make_search
from podracer.errors import UserError
from podracer.learning import losses, model_targets, optimizers
from podracer.learning.gradients import Loss, mean_gradient, sequences
from podracer.networks.world_model import Model
from podracer.parallel import AVERAGE, Average

BEYOND = FAILED + (
    "a reward or value target is beyond the network's support: raise network.max_return"
)


class Extras(NamedTuple):
    """What the learner must know of a decision."""

    policy: jax.Array  # [B, A] of the search, before the temperature
    value: jax.Array  # [B] of the search
    # int32 [B] uniformly random, for states after an episode's end
    other_action: jax.Array


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: PyTree
    opt_state: optax.OptState
    updates: jax.Array  # int32 []
    progress: jax.Array  # float32 [] updates as a share of total_steps


class ActorParams(NamedTuple):
    """What actors need of the learner's state."""

    params: PyTree
    temperature: jax.Array  # float32 []


def make_agent(config: Config, network: Model, average: Average = AVERAGE) -> Agent:
    """MuZero; `network` is `networks.world_model.make_model`'s, extras are `Extras`.

    Raises UserError for a network of another kind, and for an action mask that does not fit.
    """
    if not isinstance(network, Model):
        raise UserError(
            f"network is {type(network).__name__}; MuZero plans in a model, "
            "podracer.networks.world_model.Model: leave --network out, or return one"
        )
    model = network
    search = make_search(config, model)
    optimizer = make_optimizer(config)
    loss = make_loss(config, model)

    def initial_learner_state(key):
        params = model.init(key)
        start = Shared(params, optimizer.init(params), jnp.int32(0), jnp.float32(0.0))
        return LearnerState(start, ())

    def actor_params(learner_state):
        shared = learner_state.shared
        return ActorParams(shared.params, temperature_at(config, shared.progress))

    def act(exploring, keys, actor_params, actor_state, timestep):
        keys, other_keys = jnp.unstack(jax.vmap(jax.random.split)(keys), axis=1)
        params, temperature = actor_params
        result = search(keys, params, timestep.observation, temperature, exploring)
        other_action = jax.vmap(
            lambda key: jax.random.randint(key, (), 0, model.num_actions)
        )(other_keys)
        extras = Extras(result.policy, result.value, other_action)
        return actor_state, ActorOutput(result.action, extras)

    def learner_step(key, learner_state, trajectory):
        shared, actions = learner_state.shared, trajectory.outputs.action
        rows = make_rows(config, search, shared.params, trajectory)
        batch = sequences((trajectory.timesteps.observation, rows))
        gradients, metrics = mean_gradient(
            loss, shared.params, batch, (), actions.size, average
        )
        steps = actions.size * average.cores
        learning_rate = optimizers.learning_rate(config, shared.updates, steps)
        params, opt_state = optimizers.descend(
            optimizer, gradients, shared.opt_state, shared.params, learning_rate
        )
        updates = optax.safe_increment(shared.updates)
        progress = updates.astype(jnp.float32) * (
            steps / (config.total_steps or np.inf)
        )
        # Of this core: the largest of all would be a collective of its own.
        largest = jnp.maximum(jnp.abs(rows.value).max(), jnp.abs(rows.reward).max())
        metrics |= {
            "learning_rate": learning_rate,
            "temperature": actor_params(learner_state).temperature,
            "max_return": largest,
            # Stops the run, rather than that it is silently clipped.
            BEYOND: (largest > model.support.max_return).astype(jnp.float32),
        }
        shared = Shared(params, opt_state, updates, progress)
        return LearnerState(shared, ()), metrics

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        lambda batch_size: (),
        partial(act, True),
        partial(act, False),
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Adam with decoupled weight decay, without the learning rate."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.scale_by_adam(eps=config.adam_epsilon),
        optax.add_decayed_weights(config.weight_decay),
    )


def temperature_at(config: Config, progress: jax.Array) -> jax.Array:
    """The temperature [] of the visit counts; at progress 1/2, 3/4, 7/8, ... the next one."""
    starts = 1.0 - 0.5 ** np.arange(1, len(config.temperatures))
    stage = jnp.sum(progress >= jnp.float32(starts))
    return jnp.stack([jnp.float32(x) for x in config.temperatures])[stage]


def make_rows(
    config: Config, search: Search, params: PyTree, trajectory: Trajectory
) -> model_targets.Rows:
    """What the model learns to predict, [T + 1, B, ...]."""
    timesteps, outputs, _ = trajectory
    reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
    return model_targets.make_rows(
        timesteps._replace(reward=reward),
        outputs.action,
        outputs.extras.other_action,
        *searched(config, search, params, trajectory),
        discount_factor=config.discount_factor,
        steps=config.return_steps,
    )


def searched(
    config: Config, search: Search, params: PyTree, trajectory: Trajectory
) -> tuple[jax.Array, jax.Array]:
    """The policies [T + 1, B, A] and values [T + 1, B] to learn from."""
    again = partial(search_again, search, params)
    observation = trajectory.timesteps.observation
    if config.reanalyse:
        return jax.lax.map(again, observation)
    policy, value, _ = trajectory.outputs.extras
    last = jax.tree.map(lambda x: x[-1], observation)
    return with_last((policy, value), again(last))


def search_again(
    search: Search, params: PyTree, observation: PyTree
) -> tuple[jax.Array, jax.Array]:
    """Searches observations [B, ...] without noise; ties are broken alike in all."""
    batch = jax.tree.leaves(observation)[0].shape[0]
    keys = jnp.broadcast_to(jax.random.key(0), (batch,))
    result = search(keys, params, observation, jnp.float32(0.0), False)
    return result.policy, result.value


def make_loss(config: Config, model: Model) -> Loss:
    """(params, (observation, Rows) [T + 1, B, ...], ()) -> Terms [T, B], of each start.

    Steps after the first have the weight 1/K, and each halves the gradient of the hidden
    state that it starts from (appendix G).
    """

    def predict(params, hidden, target):
        policy, value = model.prediction(params, hidden)
        surprise = -jnp.sum(target.policy * jax.nn.log_softmax(policy), -1)
        error = model.support.cross_entropy(value, target.value)
        return {
            "policy": target.policy_mask * surprise,
            "value": target.mask * error,
        }

    def loss(params, batch, memory):
        observation, rows = batch
        targets = model_targets.unrolls(rows, config.unroll_steps)
        mask = targets.mask[0]  # [T, B]
        # All T * B starts are one batch.
        targets = jax.tree.map(
            lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]), targets
        )
        observation = jax.tree.map(
            lambda x: x[:-1].reshape(-1, *x.shape[2:]), observation
        )
        hidden = model.representation(params, observation)

        def step(hidden, target):
            hidden = jax.tree.map(halve_gradient, hidden)
            hidden, reward = model.dynamics(params, hidden, target.action)
            error = model.support.cross_entropy(reward, target.reward)
            terms = predict(params, hidden, target)
            return hidden, terms | {"reward": target.mask * error}

        start = predict(params, hidden, jax.tree.map(lambda x: x[0], targets))
        later = jax.lax.scan(step, hidden, jax.tree.map(lambda x: x[1:], targets))[1]
        terms = {name: jnp.mean(x, axis=0) for name, x in later.items()}
        terms |= {name: x + terms[name] for name, x in start.items()}
        means = {f"loss/{name}": x.reshape(mask.shape) for name, x in terms.items()}
        total = (
            means["loss/policy"]
            + config.value_cost * means["loss/value"]
            + config.reward_cost * means["loss/reward"]
        )
        return losses.Terms(total, means, mask)

    return loss


def halve_gradient(x: jax.Array) -> jax.Array:
    """x, with half its gradient."""
    return 0.5 * x + jax.lax.stop_gradient(0.5 * x)
