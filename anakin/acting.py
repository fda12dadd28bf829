"""Acting: one actor decides for a batch of environments, step by step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax

from envs_jax.wrappers import Batched
from podracer import kernels, parallel
from podracer.agent import ActorOutput, Agent, Key, PyTree, Trajectory, with_last
from podracer.metrics import episodes
from podracer.training.agent_checks import check_step, checked_initial


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
    batch_size = index.shape[0]
    state, timestep = environment.initial_state(parallel.fold_each(key, index))
    return Actors(
        index,
        state,
        timestep,
        checked_initial(agent.initial_actor_state(batch_size), batch_size),
        episodes.initial_state(batch_size),
    )


def keys_of_step(key: Key, index: jax.Array) -> Key:
    """[2, B]: a key for the decision in each environment, and one for its step."""
    return jax.vmap(jax.random.split, out_axes=1)(parallel.fold_each(key, index))


def interact(
    actor_step: Callable,
    params: PyTree,
    environment: Batched,
    actors: Actors,
    keys: Key,
) -> tuple[Actors, ActorOutput]:
    """One step in every environment: the actors after it, and their decisions.

    `actor_step` is an agent's, or its greedy twin; `keys` are of `keys_of_step`.
    """
    actor_state, output = actor_step(
        keys[0], params, actors.actor_state, actors.timestep
    )
    check_step(actor_state, output, actors.actor_state, actors.index.shape[0])
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
    return after, output


def unroll(
    actor_step: Callable,
    params: PyTree,
    environment: Batched,
    unroll_length: int,
    actors: Actors,
    key: Key,
) -> tuple[Actors, Trajectory]:
    """T steps in every environment, as `interact`."""

    def step(actors: Actors, keys: Key):
        after, output = interact(actor_step, params, environment, actors, keys)
        return after, (actors.timestep, output)

    keys = jax.vmap(keys_of_step, in_axes=(0, None))(
        jax.random.split(key, unroll_length), actors.index
    )
    after, (timesteps, outputs) = kernels.scan(step, actors, keys)
    timesteps = with_last(timesteps, after.timestep)
    return after, Trajectory(timesteps, outputs, actors.actor_state)
