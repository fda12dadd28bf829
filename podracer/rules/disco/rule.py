"""Disco103 as an update rule (Oh et al. 2025, doi:10.1038/s41586-025-09761-x)."""

import dataclasses
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from podracer.agent import Metrics, PyTree, Trajectory
from podracer.errors import check_ranges
from podracer.networks.action_model import Predictions
from podracer.networks.policies import Categorical
from podracer.parallel import AVERAGE, Average
from podracer.rules.disco import inputs, loss, meta_network, values, weights
from podracer.rules.disco.meta_network import Lifetime
from podracer.rules.disco.steps import EpisodeEnds, Steps, steps
from podracer.rules.disco.values import Moments
from podracer.rules.rule import Experience, Rule


@dataclasses.dataclass(frozen=True)
class Config:
    """What the rule leaves open; the defaults are the reference's but for episode ends."""

    discount_factor: float = 0.997
    """the agent's gamma of the value targets, per environment step"""
    retrace_lambda: float = 0.95
    """lambda of Retrace's traces"""
    target_decay: float = 0.9
    """share of the target parameters that remains at each update"""
    episode_ends: EpisodeEnds = "own"
    """what the last timestep of an episode shows: its own observation, or that of the next
    episode's first, to which the rule's published code jumps; with jump, leave out the
    network's memory, last_reward and last_action, which belong to the episode before"""
    means: Literal["masked", "plain"] = "masked"
    """whether transitions between episodes are left out of the rule's running means"""

    def __post_init__(self):
        names = "discount_factor", "retrace_lambda", "target_decay"
        check_ranges(self, 0.0, 1.0, *names)


class State(NamedTuple):
    """Carried from update to update, equal on every core."""

    target_params: PyTree  # a slow copy of the agent's
    lifetime: Lifetime
    advantage: Moments
    error: Moments  # of the values; for its metric only


def make_rule(config: Config, average: Average = AVERAGE) -> Rule:
    """Disco103, for networks that predict `networks.action_model.Predictions`."""

    def total(targets: loss.Targets, predictions: Predictions, trajectory: Trajectory):
        return loss.loss(targets, predictions, trajectory.outputs.action)

    return Rule(weights.init, initial_state, partial(targets, config, average), total)


def initial_state(params: PyTree) -> State:
    """Before the first update of an agent with these parameters."""
    nothing = values.no_moments()
    # A copy, which a runner may donate apart from the params.
    params = jax.tree.map(jnp.copy, params)
    return State(params, meta_network.newborn(), nothing, nothing)


def targets(
    config: Config,
    average: Average,
    of_rule: weights.Weights,
    state: State,
    experience: Experience,
) -> tuple[loss.Targets, State, Metrics]:
    """An update's targets, and the rule's state after it; see `Rule.targets`."""
    trajectory, _, predictions, predict = experience
    transitions = steps(trajectory.timesteps, config.episode_ends)
    action, behaviour = trajectory.outputs
    target_predictions = predict(state.target_params)
    value = values.evaluate(
        predictions,
        target_predictions,
        behaviour,
        action,
        transitions,
        config.discount_factor,
        config.retrace_lambda,
    )
    shares = partial(_shares, config, average, transitions)
    samples = value.advantage, value.error
    count, *sums, learned = shares(
        *samples, *map(jnp.square, samples), transitions.mask
    )
    means = [x / count for x in sums]
    advantage = values.updated(state.advantage, *means[::2])
    error = values.updated(state.error, *means[1::2])
    view = inputs.Inputs(
        online=inputs.probabilities(predictions),
        target=inputs.probabilities(target_predictions),
        behaviour=jax.nn.softmax(behaviour.logits),
        action=action,
        transitions=transitions,
        values=value,
        normalized=values.normalize(advantage, value.advantage),
        normalized_actions=values.normalize(advantage, value.action_advantage),
    )
    outputs = meta_network.predict(
        of_rule, state.lifetime, inputs.encode(of_rule.encoder, view), transitions.cut
    )

    def pooled(x: jax.Array) -> jax.Array:
        count, total = shares(x)
        return total / count

    lifetime = meta_network.live(
        of_rule.lifetime,
        state.lifetime,
        inputs.encode(of_rule.lifetime.encoder, view),
        outputs,
        pooled,
    )
    # With the params before this update, which the next one sees.
    target_params = jax.tree.map(
        lambda slow, fast: (
            config.target_decay * slow + (1.0 - config.target_decay) * fast
        ),
        state.target_params,
        experience.params,
    )
    metrics = {
        "rho": jnp.mean(value.rho),
        "rule/returns": jnp.mean(value.returns),
        "rule/error": jnp.mean(value.error),
        "rule/normalized_error": jnp.mean(value.error / values.scale(error)[1]),
        "entropy": jnp.mean(predictions.policy.entropy()),
    }
    next_policy = jax.tree.map(lambda x: x[1:], predictions.policy)
    results = loss.Targets(
        *map(Categorical, outputs[:3]),
        next_policy,
        value.returns,
        transitions,
        learned,
    )
    return results, State(target_params, lifetime, advantage, error), metrics


def _shares(
    config: Config, average: Average, transitions: Steps, *samples: jax.Array
) -> tuple[jax.Array, ...]:
    """(share of transitions that count, sums over these by the number of all), each over
    time, batch and cores, in one collective: [T, B, ...] -> [...]."""
    plain = config.means == "plain"
    counts = jnp.ones_like(transitions.real) if plain else transitions.real

    def share(x: jax.Array) -> jax.Array:
        weight = counts.reshape(*counts.shape, *(1,) * (x.ndim - 2))
        return jnp.mean(jnp.where(weight > 0.0, x, 0.0), (0, 1))

    count, *sums = average((jnp.mean(counts), *map(share, samples)))
    return jnp.maximum(count, 1e-8), *sums
