"""Agents that see their history: stacked frames, the last action.

Transformations make agents of agents, as optax composes; no runner changes for them.
"""

from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer.agent import Agent, PyTree, Trajectory, with_last
from podracer.errors import UserError
from podracer.observations import each
from podracer.transformations.learning import learning_from


def stack_frames(agent: Agent, num_frames: int, frame_spec: Any) -> Agent:
    """The agent sees the last `num_frames` frames, concatenated along the last axis.

    Environments deliver single frames, and trajectories hold them: the stack is part of the
    actor's state, and the learner rebuilds it. At FIRST it repeats the first frame, as in
    EnvPool. Of a tree of observations, the images [H, W, C] are stacked.

    Args:
      agent: made for `stacked_spec(frame_spec, num_frames)`.
      num_frames: number of frames in a stack.
      frame_spec: the environment's own observation_spec.
    """
    if num_frames == 1:
        return agent
    older = num_frames - 1

    def initial(batch_size: int) -> PyTree:
        def zeros(spec: specs.Array) -> jax.Array:
            *shape, channels = spec.shape
            return jnp.zeros((batch_size, *shape, older * channels), spec.dtype)

        return jax.tree.map(zeros, _frames(frame_spec, frame_spec))

    def push(stacks: PyTree, timestep: dm_env.TimeStep):
        def one(frames: jax.Array, new: jax.Array) -> jax.Array:
            first = timestep.first().reshape(-1, *(1,) * (new.ndim - 1))
            filled = jnp.where(first, jnp.concatenate([new] * older, axis=-1), frames)
            return jnp.concatenate([filled, new], axis=-1)

        new = _frames(frame_spec, timestep.observation)
        seen = jax.tree.map(one, stacks, new)
        stacks = jax.tree.map(lambda x, y: x[..., y.shape[-1] :], seen, new)
        observation = each(lambda x, _: x, seen, timestep.observation)
        return stacks, timestep._replace(observation=observation)

    return remember(agent, initial, push, lambda stacks, action: stacks)


def stacked_spec(frame_spec: Any, num_frames: int) -> Any:
    """The spec of `num_frames` frames, concatenated along the last axis.

    Raises UserError for anything but one array with an axis, or a tree with an image.
    """
    frames = _frames(frame_spec, frame_spec)
    if not jax.tree.leaves(frames):
        raise UserError(
            f"frame_stack is {num_frames}, for observations of one array with at least one "
            "axis, or with an image [H, W, C] in them, which this environment's are not: "
            "leave it at 1"
        )
    return each(lambda spec, _: _stacked(spec, num_frames), frames, frame_spec)


def _frames(frame_spec: Any, tree: PyTree) -> PyTree:
    """What is stacked of a tree like the spec; None for its other leaves."""

    def frame(spec: specs.Array, x: Any) -> Any:
        return x if _is_frame(frame_spec, spec) else None

    return jax.tree.map(frame, frame_spec, tree)


def _is_frame(frame_spec: Any, spec: specs.Array) -> bool:
    """Whether a leaf is stacked: the only one, if it has an axis, otherwise an image."""
    return len(spec.shape) > 0 if spec is frame_spec else len(spec.shape) == 3


def _stacked(spec: specs.Array, num_frames: int) -> specs.Array:
    *shape, channels = spec.shape
    bounds = {}
    if isinstance(spec, specs.BoundedArray):
        for name in ("minimum", "maximum", "start"):
            bound = np.asarray(getattr(spec, name, 0))
            if bound.ndim:  # of each element, or of each channel
                bounds[name] = np.concatenate(
                    [np.broadcast_to(bound, spec.shape)] * num_frames, axis=-1
                )
    return spec.replace(shape=(*shape, num_frames * channels), **bounds)


def observe_last_action(agent: Agent, action_spec: PyTree) -> Agent:
    """The agent sees `(observation, last action)`; the action is 0 at the very start.

    Args:
      agent: made for the spec `(observation_spec, action_spec)`.
      action_spec: the environment's.
    """

    def initial(batch_size: int) -> PyTree:
        return jax.tree.map(
            lambda spec: jnp.zeros((batch_size, *spec.shape), spec.dtype), action_spec
        )

    def see(last_action: PyTree, timestep: dm_env.TimeStep):
        observation = (timestep.observation, last_action)
        return last_action, timestep._replace(observation=observation)

    return remember(agent, initial, see, lambda last_action, action: action)


def remember(agent: Agent, initial: Callable, see: Callable, acted: Callable) -> Agent:
    """An agent whose timesteps are preprocessed with a history, part of its actor state.

    Args:
      agent: sees the timesteps that `see` returns.
      initial: (batch_size) -> history [B, ...].
      see: (history, timestep) -> (history, the timestep that the agent sees).
      acted: (history, action) -> history, after each decision.
    """

    def initial_actor_state(batch_size: int) -> PyTree:
        return initial(batch_size), agent.initial_actor_state(batch_size)

    def acting(actor_step):
        def step(keys, params, actor_state, timestep):
            history, inner = actor_state
            history, timestep = see(history, timestep)
            inner, output = actor_step(keys, params, inner, timestep)
            return (acted(history, output.action), inner), output

        return step

    def seen(trajectory: Trajectory) -> Trajectory:
        """The trajectory as the agent saw it."""
        timesteps, outputs, (history, inner) = trajectory

        def step(history, row):
            timestep, action = row
            history, timestep = see(history, timestep)
            return acted(history, action), timestep

        rows = jax.tree.map(lambda x: x[:-1], timesteps)
        last = jax.tree.map(lambda x: x[-1], timesteps)
        history, rows = jax.lax.scan(step, history, (rows, outputs.action))
        _, last = see(history, last)
        return Trajectory(with_last(rows, last), outputs, inner)

    return learning_from(agent, seen)._replace(
        initial_actor_state=initial_actor_state,
        actor_step=acting(agent.actor_step),
        greedy_actor_step=acting(agent.greedy_actor_step),
    )
