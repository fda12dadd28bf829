"""Agents that act and see from -1 to 1, where the environment has bounds of its own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer.agent import ActorOutput, Agent, PyTree, Trajectory
from podracer.errors import UserError
from podracer.transformations import remember


def scaled_spec(spec: Any) -> Any:
    """A pytree of specs from -1 to 1; names (DiscreteArray) stay as they are."""

    def scaled(spec):
        if isinstance(spec, specs.DiscreteArray):
            return spec
        return specs.BoundedArray(spec.shape, np.float32, -1.0, 1.0, spec.name)

    return jax.tree.map(scaled, spec)


def scale_observations(agent: Agent, observation_spec: Any) -> Agent:
    """The agent sees -1 and 1 at the bounds of what is observed.

    Args:
      agent: made for `scaled_spec(observation_spec)`.
      observation_spec: of the environment; UserError where it has no range to scale.
    """
    _check_ranges(
        "observation_spec", observation_spec, "normalize_observations needs none"
    )

    def scale(spec, x):
        if isinstance(spec, specs.DiscreteArray):
            return x
        bounds = _range(spec)
        return (x.astype(jnp.float32) - bounds.center) / bounds.half

    def see(kept, timestep):
        observation = _each(scale, observation_spec)(timestep.observation)
        return kept, timestep._replace(observation=observation)

    return remember(agent, lambda batch_size: (), see, lambda kept, action: kept)


def scale_actions(agent: Agent, action_spec: Any) -> Agent:
    """The agent acts from -1 to 1, the environment between its bounds.

    The agent may exceed that: its action is clipped for the environment alone, and it
    learns from the one that it chose.

    Args:
      agent: made for `scaled_spec(action_spec)`.
      action_spec: of the environment; UserError where it has no range to scale.
    """
    _check_ranges("action_spec", action_spec, "clip_actions needs none")
    return _act_within(agent, action_spec, lambda to, x: to.center + to.half * x)


def clip_actions(agent: Agent, action_spec: Any) -> Agent:
    """The same, but the agent acts in the environment's own units; bounds may be infinite.

    Args:
      agent: made for `action_spec`, which it may exceed.
      action_spec: of the environment; UserError unless in floats.
    """
    return _act_within(agent, action_spec, lambda to, x: x)


def _act_within(agent: Agent, action_spec: Any, move: Callable) -> Agent:
    """`move(range, action)`, clipped, goes to the environment.

    `ActorOutput.extras` are the agent's own ActorOutput.
    """
    for path, spec in jax.tree.leaves_with_path(action_spec):
        if not np.issubdtype(spec.dtype, np.floating):
            raise UserError(
                f"action_spec{jax.tree_util.keystr(path)} is of {spec.dtype}; only "
                "actions in floats have a range: leave scale_actions or clip_actions out"
            )

    def to_environment(spec, action):
        bounds = _range(spec)
        return jnp.clip(move(bounds, action), bounds.low, bounds.high)

    def within(act):
        def step(*arguments):
            actor_state, output, *rest = act(*arguments)
            action = _each(to_environment, action_spec)(output.action)
            return actor_state, ActorOutput(action, output), *rest

        return step

    def own(trajectory: Trajectory) -> Trajectory:
        return trajectory._replace(outputs=trajectory.outputs.extras)

    def learner_step(key, learner_state, trajectory):
        return agent.learner_step(key, learner_state, own(trajectory))

    def online_step(key, learner_state, interact):
        def interact_within(act):
            trajectory, predictions, rest = interact(within(act))
            return own(trajectory), predictions, rest

        return agent.online_step(key, learner_state, interact_within)

    return agent._replace(
        learner_step=learner_step,
        actor_step=within(agent.actor_step),
        greedy_actor_step=within(agent.greedy_actor_step),
        online_step=agent.online_step and online_step,
    )


class Range(NamedTuple):
    """What a spec allows, each float32 [...]; -inf to inf if it says nothing."""

    low: np.ndarray
    high: np.ndarray
    center: np.ndarray
    half: np.ndarray  # of its width


@np.errstate(over="ignore", invalid="ignore")  # of infinite ranges
def _range(spec: specs.Array) -> Range:
    low, high = (
        np.broadcast_to(getattr(spec, name, default), spec.shape).astype(np.float32)
        for name, default in (("minimum", -np.inf), ("maximum", np.inf))
    )
    return Range(low, high, (low + high) / 2, (high - low) / 2)


def _each(function: Callable, spec: Any) -> Callable[[PyTree], PyTree]:
    """`function(leaf of spec, leaf)` for a batch of trees [B, ...] as the spec."""
    return jax.vmap(lambda tree: jax.tree.map(function, spec, tree))


def _check_ranges(field: str, spec: Any, way_out: str) -> None:
    """Raises UserError where a quantity has no finite range."""
    for path, leaf in jax.tree.leaves_with_path(spec):
        low, high, _, half = _range(leaf)
        bad = ~((0.0 < half) & (half < np.inf))
        if bad.any() and not isinstance(leaf, specs.DiscreteArray):
            raise UserError(
                f"{field}{jax.tree_util.keystr(path)} has bounds {low[bad][0]:g} to "
                f"{high[bad][0]:g}; to scale, they must be finite and differ: {way_out}"
            )
