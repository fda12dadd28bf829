"""What a policy is worth, and how it looks: whole episodes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anakin.acting import initial_actors, interact
from envs_jax.environment import Environment
from envs_jax.wrappers import Batched, auto_reset
from podracer.agent import Agent
from podracer.evaluation import Evaluation


def evaluate(
    agent: Agent,
    actor_params: Any,
    environment: Environment,
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = 100_000,
) -> Evaluation:
    """Acts with `actor_params` for one episode in each of `episodes` environments.

    First episodes only: short ones get no second turn.

    Args:
      agent: whose `greedy_actor_step` acts, or `actor_step` if not `greedy`.
      actor_params: `agent.actor_params(state.learner)`.
      environment: of one episode, as for `train`.
      episodes: N.
      seed: of the environments and of sampled actions.
      greedy: act without exploration.
      max_steps: environment steps after which an endless episode is given up.
    """
    run = _make_run(agent, environment, episodes, greedy, max_steps)
    count = jax.device_get(run(actor_params, jax.random.key(seed)))
    return Evaluation(
        count.episode_return, count.episode_length, count.finished.astype(bool)
    )


def film(
    agent: Agent,
    actor_params: Any,
    environment: Environment,
    *,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = 1_000,
) -> list[np.ndarray]:
    """The pictures of one episode, or of its first `max_steps` steps: uint8 [H, W, 3].

    The arguments are those of `evaluate`. Raises ValueError where the environment has
    no `render(state)`.
    """
    if not hasattr(environment, "render"):
        raise ValueError(
            f"{type(environment).__name__} has no pictures (render(state))"
        )
    batched = Batched(environment)
    actor_step = agent.greedy_actor_step if greedy else agent.actor_step

    def draw(actors):
        state = jax.tree.map(lambda x: x[0], actors.environment)
        return actors, environment.render(state), actors.timestep.last()[0]

    @jax.jit
    def start(key):
        return draw(initial_actors(key, jnp.arange(1), agent, batched))

    @jax.jit
    def step(actors, params, key):
        def act(keys, actor_state, timestep):
            return *actor_step(keys, params, actor_state, timestep), ()

        return draw(interact(act, batched, actors, key)[0])

    key = jax.random.key(seed)
    actors, picture, over = start(key)
    pictures = [np.asarray(picture)]
    while not over and len(pictures) <= max_steps:
        key_now = jax.random.fold_in(key, len(pictures))
        actors, picture, over = step(actors, actor_params, key_now)
        pictures.append(np.asarray(picture))
    return pictures


@functools.lru_cache(maxsize=8)  # so that a loop that evaluates compiles once
def _make_run(
    agent: Agent, environment: Environment, episodes: int, greedy: bool, max_steps: int
):
    environment = Batched(auto_reset(environment))
    actor_step = agent.greedy_actor_step if greedy else agent.actor_step

    @jax.jit
    def run(params, key):
        start_key, run_key = jax.random.split(key)
        actors = initial_actors(start_key, jnp.arange(episodes), agent, environment)

        def act(keys, actor_state, timestep):
            return *actor_step(keys, params, actor_state, timestep), ()

        def goes_on(carry):
            step, actors = carry
            return (step < max_steps) & ~jnp.all(actors.episodes.finished)

        def body(carry):
            step, before = carry
            key = jax.random.fold_in(run_key, step)
            after, _, _ = interact(act, environment, before, key)
            over = before.episodes.finished > 0
            count = jax.tree.map(
                lambda old, new: jnp.where(over, old, new),
                before.episodes,
                after.episodes,
            )
            return step + 1, after._replace(episodes=count)

        return jax.lax.while_loop(goes_on, body, (0, actors))[1].episodes

    return run
