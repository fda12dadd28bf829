"""What sits between environment and algorithm: agents made of agents, as optax composes.

No runner changes for any of them, and both architectures have them at once.
"""

import dm_env
import jax
import jax.numpy as jnp
from dm_env import specs

from podracer.agent import Agent, PyTree, Trajectory


def stack_frames(agent: Agent, num_frames: int, frame_spec: specs.Array) -> Agent:
    """The agent sees the last `num_frames` frames, side by side on the last axis.

    Environments deliver, and trajectories hold, single frames: the stack lives with the
    actor's memory, and the learner builds it again. At FIRST it is the first frame all
    over, as in EnvPool and in DQN's preprocessing.

    Args:
      agent: made for `stacked_spec(frame_spec, num_frames)`.
      num_frames: in a stack.
      frame_spec: of an observation [..., C] as the environment delivers it.
    """
    older = num_frames - 1

    def initial_actor_state(batch_size: int) -> PyTree:
        *shape, channels = frame_spec.shape
        frames = jnp.zeros((batch_size, *shape, older * channels), frame_spec.dtype)
        return frames, agent.initial_actor_state(batch_size)

    def push(frames: jax.Array, timestep: dm_env.TimeStep):
        """The frames to keep, and the timestep with its stack."""
        new = timestep.observation
        first = timestep.first().reshape(-1, *(1,) * (new.ndim - 1))
        filled = jnp.where(first, jnp.concatenate([new] * older, axis=-1), frames)
        stack = jnp.concatenate([filled, new], axis=-1)
        kept = stack[..., new.shape[-1] :]
        return kept, timestep._replace(observation=stack)

    def stacked(act):
        """`act` for single frames, with the stack in its actor state."""

        def step(keys, actor_state, timestep):
            frames, inner = actor_state
            frames, timestep = push(frames, timestep)
            inner, *rest = act(keys, inner, timestep)
            return (frames, inner), *rest

        return step

    def over_params(actor_step):
        def step(keys, params, actor_state, timestep):
            def act(keys, inner, timestep):
                return actor_step(keys, params, inner, timestep)

            return stacked(act)(keys, actor_state, timestep)

        return step

    def stack(trajectory: Trajectory) -> Trajectory:
        frames, inner = trajectory.actor_state
        _, timesteps = jax.lax.scan(push, frames, trajectory.timesteps)
        return Trajectory(timesteps, trajectory.outputs, inner)

    def learner_step(key, learner_state, trajectory):
        return agent.learner_step(key, learner_state, stack(trajectory))

    def online_step(key, learner_state, interact):
        def interact_stacked(act):
            trajectory, predictions, rest = interact(stacked(act))
            return stack(trajectory), predictions, rest

        return agent.online_step(key, learner_state, interact_stacked)

    return agent._replace(
        learner_step=learner_step,
        initial_actor_state=initial_actor_state,
        actor_step=over_params(agent.actor_step),
        greedy_actor_step=over_params(agent.greedy_actor_step),
        online_step=agent.online_step and online_step,
    )


def stacked_spec(frame_spec: specs.Array, num_frames: int) -> specs.Array:
    """The spec of `num_frames` frames side by side."""
    *shape, channels = frame_spec.shape
    return frame_spec.replace(shape=(*shape, num_frames * channels))
