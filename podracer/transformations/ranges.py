"""Bounds: agents whose actions and observations range from -1 to 1."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer.agent import ActorOutput, Agent, PyTree, Trajectory
from podracer.errors import UserError
from podracer.transformations.history import learning_from, remember


def scaled_spec(spec: Any) -> Any:
    """A pytree of specs with bounds -1 and 1; discrete ones are left unchanged."""

    def scaled(spec):
        if isinstance(spec, specs.DiscreteArray):
            return spec
        return specs.BoundedArray(spec.shape, np.float32, -1.0, 1.0, spec.name)

    return jax.tree.map(scaled, spec)


def scale_observations(agent: Agent, observation_spec: Any) -> Agent:
    """The agent sees observations scaled from their bounds to [-1, 1].

    Args:
      agent: made for `scaled_spec(observation_spec)`.
      observation_spec: the environment's; UserError where it has no finite bounds.
    """
    _check_ranges(
        "observation_spec", observation_spec, "normalize_observations needs none"
    )

    def scale(spec, x):
        if isinstance(spec, specs.DiscreteArray):
            return x
        bounds = _range(spec)
        return (x.astype(jnp.float32) - bounds.center) / bounds.half

    def see(history, timestep):
        observation = _each(scale, observation_spec)(timestep.observation)
        return history, timestep._replace(observation=observation)

    return remember(agent, lambda batch_size: (), see, lambda history, action: history)


def scale_actions(agent: Agent, action_spec: Any) -> Agent:
    """The agent's actions from -1 to 1 are scaled to the environment's bounds.

    Actions beyond -1 and 1 are clipped for the environment only: the agent learns from the
    action that it chose.

    Args:
      agent: made for `scaled_spec(action_spec)`.
      action_spec: the environment's; UserError where it has no finite bounds.
    """
    way_out = "clip_actions (--interface.actions clip) needs none"
    _check_ranges("action_spec", action_spec, way_out)
    return _act_within(agent, action_spec, lambda to, x: to.center + to.half * x)


def clip_actions(agent: Agent, action_spec: Any) -> Agent:
    """As `scale_actions`, but in the environment's own units; bounds may be infinite.

    Args:
      agent: made for `action_spec`, whose bounds it may exceed.
      action_spec: the environment's; UserError unless of floats.
    """
    return _act_within(agent, action_spec, lambda to, x: x)


def _act_within(agent: Agent, action_spec: Any, move: Callable) -> Agent:
    """The environment receives `move(range, action)`, clipped to its bounds.

    `ActorOutput.extras` is the agent's own ActorOutput.
    """
    for path, spec in jax.tree.leaves_with_path(action_spec):
        if not np.issubdtype(spec.dtype, np.floating):
            raise UserError(
                f"action_spec{jax.tree_util.keystr(path)} is of {spec.dtype}; only float "
                "actions can be scaled or clipped: leave scale_actions or clip_actions out"
            )

    def to_environment(spec, action):
        bounds = _range(spec)
        return jnp.clip(move(bounds, action), bounds.low, bounds.high)

    def within(act):
        def step(*arguments):
            actor_state, output = act(*arguments)
            action = _each(to_environment, action_spec)(output.action)
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


def _each(function: Callable, spec: Any) -> Callable[[PyTree], PyTree]:
    """`function(leaf of spec, leaf)` over a batch [B, ...] of trees like the spec."""
    return jax.vmap(lambda tree: jax.tree.map(function, spec, tree))


def _check_ranges(field: str, spec: Any, way_out: str) -> None:
    """Raises UserError where a spec that is not discrete has no finite bounds."""
    for path, leaf in jax.tree.leaves_with_path(spec):
        low, high, _, half = _range(leaf)
        bad = ~((0.0 < half) & (half < np.inf))
        if bad.any() and not isinstance(leaf, specs.DiscreteArray):
            raise UserError(
                f"{field}{jax.tree_util.keystr(path)} has bounds {low[bad][0]:g} to "
                f"{high[bad][0]:g}; to scale, they must be finite and differ: {way_out}"
            )
