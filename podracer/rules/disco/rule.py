"""Disco103 as an update rule (Oh et al. 2025, doi:10.1038/s41586-025-09761-x)."""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from podracer.agent import PyTree, Trajectory
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
    episode's first, to which the rule's published code jumps"""
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

    def initial_state(params: PyTree) -> State:
        nothing = values.no_moments()
        # A copy, which a runner may donate apart from the params.
        params = jax.tree.map(jnp.copy, params)
        return State(params, meta_network.newborn(), nothing, nothing)

    def mean(between: Steps, *samples: jax.Array):
        """Means over time, batch and cores: [T, B, ...] -> [...]."""
        if config.means == "plain":
            return average(tuple(jnp.mean(x, (0, 1)) for x in samples))

        def masked(x):
            real = between.real.reshape(*between.real.shape, *(1,) * (x.ndim - 2))
            return jnp.mean(jnp.where(real > 0.0, x, 0.0), (0, 1))

        count, *sums = average((jnp.mean(between.real), *map(masked, samples)))
        return tuple(x / jnp.maximum(count, 1e-8) for x in sums)

    def targets(of_rule: weights.Weights, state: State, experience: Experience):
        trajectory, _, predictions, predict = experience
        between = steps(trajectory.timesteps, config.episode_ends)
        action, behaviour = trajectory.outputs
        of_target = predict(state.target_params)
        value = values.evaluate(
            predictions,
            of_target,
            behaviour,
            action,
            between,
            config.discount_factor,
            config.retrace_lambda,
        )
        moments = mean(
            between,
            value.advantage,
            jnp.square(value.advantage),
            value.error,
            jnp.square(value.error),
        )
        advantage = values.updated(state.advantage, *moments[:2])
        error = values.updated(state.error, *moments[2:])
        seen = inputs.Inputs(
            online=inputs.probabilities(predictions),
            target=inputs.probabilities(of_target),
            behaviour=jax.nn.softmax(behaviour.logits),
            action=action,
            between=between,
            values=value,
            normalized=values.normalize(advantage, value.advantage),
            normalized_actions=values.normalize(advantage, value.action_advantage),
        )
        outputs = meta_network.predict(
            of_rule, state.lifetime, inputs.encode(of_rule.encoder, seen), between.cut
        )
        lifetime = meta_network.live(
            of_rule.lifetime,
            state.lifetime,
            inputs.encode(of_rule.lifetime.encoder, seen),
            outputs,
            lambda x: mean(between, x)[0],
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
            "value_target": jnp.mean(value.returns),
            "value_error": jnp.mean(value.error),
            "normalized_value_error": jnp.mean(value.error / values.scale(error)[1]),
            "entropy": jnp.mean(predictions.policy.entropy()),
        }
        next_policy = jax.tree.map(lambda x: x[1:], predictions.policy)
        found = loss.Targets(
            *map(Categorical, outputs[:3]),
            next_policy,
            value.returns,
            between,
            average(jnp.mean(between.mask)),
        )
        return found, State(target_params, lifetime, advantage, error), metrics

    def total(targets: loss.Targets, predictions: Predictions, trajectory: Trajectory):
        return loss.loss(targets, predictions, trajectory.outputs.action)

    return Rule(weights.init, initial_state, targets, total)
