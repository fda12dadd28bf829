"""Acting: one actor decides for a batch of environments, step by step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
from jax.extend import core

from envs_jax.wrappers import Batched
from podracer import parallel
from podracer.agent import ActorOutput, Agent, Key, Trajectory, with_last
from podracer.metrics import episodes
from podracer.training.actor_checks import check_step, checked_initial

TOGETHER = 4  # steps in an iteration of an accelerator's loop
LARGE = 3000  # operations of a step: larger ones, as brax's, are taken singly


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
    act: Callable, environment: Batched, actors: Actors, keys: Key
) -> tuple[Actors, ActorOutput, Any]:
    """One step in every environment: the actors after it, their decisions, and `kept`.

    `act(keys, actor_state, timestep) -> (actor_state, ActorOutput, kept)`; `keys` are of
    `keys_of_step`.
    """
    actor_state, output, kept = act(keys[0], actors.actor_state, actors.timestep)
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
    return after, output, kept


def unroll(
    act: Callable,
    environment: Batched,
    unroll_length: int,
    actors: Actors,
    key: Key,
    platform: str = "cpu",
) -> tuple[Actors, Trajectory, Any]:
    """T steps in every environment; `act` as for `interact`, its `kept` is [T, B, ...].

    An accelerator needs fewer kernels for several small steps in one iteration of the loop;
    with large ones there is less to gain, and they take longer to compile. For the same
    reason the keys of all steps are made before the loop.
    """

    def step(actors: Actors, keys: Key):
        after, output, kept = interact(act, environment, actors, keys)
        return after, (flat(actors.timestep), output, kept)

    keys = jax.vmap(keys_of_step, in_axes=(0, None))(
        jax.random.split(key, unroll_length), actors.index
    )
    together = 1
    if platform != "cpu":
        step = jax.jit(step, inline=True)  # traced once, to be counted and for the loop
        if operations(jax.make_jaxpr(step)(actors, keys[0]).jaxpr) <= LARGE:
            together = TOGETHER
    after, (timesteps, outputs, kept) = jax.lax.scan(
        step, actors, keys, unroll=together
    )
    timesteps = jax.tree.map(
        lambda xs, x: xs.reshape(unroll_length, *x.shape),
        timesteps,
        actors.timestep,
    )
    timesteps = with_last(timesteps, after.timestep)
    return after, Trajectory(timesteps, outputs, actors.actor_state), kept


def operations(program: core.Jaxpr) -> int:
    """How many operations run: of all branches, and one iteration of a `while` loop."""
    total = len(program.eqns)
    for equation in program.eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for x in jax.tree.leaves([*equation.params.values()]):
            if isinstance(x, core.ClosedJaxpr | core.Jaxpr):
                total += times * operations(getattr(x, "jaxpr", x))
    return total


def flat(timestep: dm_env.TimeStep) -> dm_env.TimeStep:
    """The timestep with images as [B, n], which is how rows of them are stored.

    A TPU pads the last two axes of an array to 8 x 128: images [10, 10, 4] would take 20
    times their size. Boards [B, H, W] stay: computing Catch's flat costs a CPU a tenth.
    """
    observation = jax.tree.map(
        lambda x: x.reshape(x.shape[0], -1) if x.ndim > 3 else x, timestep.observation
    )
    return timestep._replace(observation=observation)
