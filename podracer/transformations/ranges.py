"""Bounds: agents whose actions and observations range from -1 to 1."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer.agent import ActorOutput, Agent, PyTree, Trajectory
from podracer.errors import UserError
from podracer.observations import each, quantities
from podracer.transformations.history import remember
from podracer.transformations.learning import learning_from


def scaled_spec(spec: Any) -> Any:
    """A pytree of specs of observations, with bounds -1 and 1.

    Choices, booleans and action masks (`podracer.observations`) are left unchanged.
    """
    return each(_scaled, quantities(spec), spec)


def scaled_action_spec(spec: Any) -> Any:
    """A pytree of specs of actions, floats with bounds -1 and 1; others are unchanged."""
    return each(_scaled, _floats(spec), spec)


def _scaled(spec: specs.Array, _: Any) -> specs.BoundedArray:
    return specs.BoundedArray(spec.shape, np.float32, -1.0, 1.0, spec.name)


def scale_observations(agent: Agent, observation_spec: Any) -> Agent:
    """The agent sees observations scaled from their bounds to [-1, 1].

    Args:
      agent: made for `scaled_spec(observation_spec)`.
      observation_spec: the environment's; UserError where it has no finite bounds.
    """
    numbers = quantities(observation_spec)
    _check_ranges("observation_spec", numbers, "normalize_observations needs none")

    def scale(spec, x):
        bounds = _range(spec)
        return (x.astype(jnp.float32) - bounds.center) / bounds.half

    def see(history, timestep):
        observation = _batched(scale, numbers)(timestep.observation)
        return history, timestep._replace(observation=observation)

    return remember(agent, lambda batch_size: (), see, lambda history, action: history)


def has_floats(action_spec: Any) -> bool:
    """Whether an action, any pytree, has a part of floats."""
    return bool(jax.tree.leaves(_floats(action_spec)))


def _floats(action_spec: Any) -> Any:
    """The spec with None for the parts that are not of floats."""

    def part(spec: specs.Array) -> specs.Array | None:
        return spec if np.issubdtype(spec.dtype, np.floating) else None

    return jax.tree.map(part, action_spec)


def scale_actions(agent: Agent, action_spec: Any) -> Agent:
    """The agent's actions from -1 to 1 are scaled to the environment's bounds.

    Actions beyond -1 and 1 are clipped for the environment only: the agent learns from the
    action that it chose. Of a composite action, the floats are scaled.

    Args:
      agent: made for `scaled_action_spec(action_spec)`.
      action_spec: the environment's; UserError where floats have no finite bounds.
    """
    way_out = "clip_actions (--interface.actions clip) needs none"
    _check_ranges("action_spec", _floats(action_spec), way_out)
    return _act_within(agent, action_spec, lambda to, x: to.center + to.half * x)


def clip_actions(agent: Agent, action_spec: Any) -> Agent:
    """As `scale_actions`, but in the environment's own units; bounds may be infinite.

    Args:
      agent: made for `action_spec`, whose bounds it may exceed.
      action_spec: the environment's; UserError unless floats are among them.
    """
    return _act_within(agent, action_spec, lambda to, x: x)


def _act_within(agent: Agent, action_spec: Any, move: Callable) -> Agent:
    """The environment receives `move(range, action)`, clipped to its bounds.

    `ActorOutput.extras` is the agent's own ActorOutput.
    """
    if not has_floats(action_spec):
        raise UserError(
            f"action_spec is {action_spec}; only float actions can be scaled or clipped: "
            "leave scale_actions or clip_actions out"
        )

    def to_environment(spec, action):
        bounds = _range(spec)
        return jnp.clip(move(bounds, action), bounds.low, bounds.high)

    def within(act):
        def step(*arguments):
            actor_state, output = act(*arguments)
            action = _batched(to_environment, _floats(action_spec))(output.action)
            return actor_state, ActorOutput(action, output)

        return step

    def own(trajectory: Trajectory) -> Trajectory:
        return trajectory._replace(outputs=trajectory.outputs.extras)

    return learning_from(agent, own)._replace(
        actor_step=within(agent.actor_step),
        greedy_actor_step=within(agent.greedy_actor_step),
    )


class Range(NamedTuple):
    """The bounds of a spec, float32 [...]; -inf and inf where it has none."""

    low: np.ndarray
    high: np.ndarray
    center: np.ndarray
    half: np.ndarray  # half of the width


@np.errstate(over="ignore", invalid="ignore")  # of infinite ranges
def _range(spec: specs.Array) -> Range:
    low, high = (
        np.broadcast_to(getattr(spec, name, default), spec.shape).astype(np.float32)
        for name, default in (("minimum", -np.inf), ("maximum", np.inf))
    )
    return Range(low, high, (low + high) / 2, (high - low) / 2)


def _batched(function: Callable, parts: Any) -> Callable[[PyTree], PyTree]:
    """`each(function, parts, tree)` over a batch [B, ...] of trees."""
    return jax.vmap(partial(each, function, parts))


def _check_ranges(field: str, spec: Any, way_out: str) -> None:
    """Raises UserError where a leaf has no finite bounds."""
    for path, leaf in jax.tree.leaves_with_path(spec):
        low, high, _, half = _range(leaf)
        bad = ~((0.0 < half) & (half < np.inf))
        if bad.any():
            raise UserError(
                f"{field}{jax.tree_util.keystr(path)} has bounds {low[bad][0]:g} to "
                f"{high[bad][0]:g}; to scale, they must be finite and differ: {way_out}"
            )
