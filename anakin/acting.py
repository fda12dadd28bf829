"""Acting: one actor decides for a batch of environments, step by step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax

from envs_jax.wrappers import Batched
from podracer.agent import ActorOutput, Agent, Key, Trajectory, with_last
from podracer.metrics import episodes


class Actors(NamedTuple):
    """A batch of environments and the actor's state in each, split over the cores."""

    index: jax.Array  # [B] int32, number among all environments; seeds its randomness
    environment: Any  # [B, ...]
    timestep: dm_env.TimeStep  # [B, ...]
    actor_state: Any  # [B, ...]
    episodes: episodes.Episodes  # [B, ...]


def initial_actors(
    key: Key, index: jax.Array, agent: Agent, environment: Batched
) -> Actors:
    """Actors at the start of an episode in each of the environments `index` [B]."""
    state, timestep = environment.initial_state(fold_each(key, index))
    return Actors(
        index,
        state,
        timestep,
        agent.initial_actor_state(index.shape[0]),
        episodes.initial_state(index.shape[0]),
    )


def fold_each(key: Key, index: jax.Array) -> Key:
    """A key for each environment [B], the same whichever core it is on."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)


def interact(
    act: Callable, environment: Batched, actors: Actors, key: Key
) -> tuple[Actors, ActorOutput, Any]:
    """One step in every environment: the actors after it, their decisions, and `kept`.

    `act(keys, actor_state, timestep) -> (actor_state, ActorOutput, kept)`.
    """
    keys = jax.vmap(jax.random.split, out_axes=1)(fold_each(key, actors.index))
    actor_state, output, kept = act(keys[0], actors.actor_state, actors.timestep)
    environment_state, timestep = environment.step(
        keys[1], actors.environment, output.action
    )
    after = Actors(
        actors.index,
        environment_state,
        timestep,
        actor_state,
        episodes.step(actors.episodes, timestep),
    )
    return after, output, kept


def unroll(
    act: Callable, environment: Batched, unroll_length: int, actors: Actors, key: Key
) -> tuple[Actors, Trajectory, Any]:
    """T steps in every environment; `act` as for `interact`, its `kept` is [T, B, ...]."""

    def step(actors: Actors, key: Key):
        after, output, kept = interact(act, environment, actors, key)
        return after, (flat(actors.timestep), output, kept)

    after, (timesteps, outputs, kept) = jax.lax.scan(
        step, actors, jax.random.split(key, unroll_length)
    )
    timesteps = jax.tree.map(
        lambda xs, x: xs.reshape(unroll_length, *x.shape),
        timesteps,
        actors.timestep,
    )
    timesteps = with_last(timesteps, after.timestep)
    return after, Trajectory(timesteps, outputs, actors.actor_state), kept


def flat(timestep: dm_env.TimeStep) -> dm_env.TimeStep:
    """The timestep with images as [B, n], which is how rows of them are stored.

    A TPU pads the last two axes of an array to 8 x 128: images [10, 10, 4] would take 20
    times their size. Boards [B, H, W] stay: computing Catch's flat costs a CPU a tenth.
    """
    observation = jax.tree.map(
        lambda x: x.reshape(x.shape[0], -1) if x.ndim > 3 else x, timestep.observation
    )
    return timestep._replace(observation=observation)
