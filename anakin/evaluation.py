"""Evaluating a policy over whole episodes, and filming one."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anakin.acting import initial_actors, interact, keys_of_step
from envs_jax.environment import Environment
from envs_jax.wrappers import Batched, auto_reset, unwrapped
from podracer.agent import Agent
from podracer.errors import check_play
from podracer.runs.evaluation import Evaluation
from podracer.trained import filming
from podracer.trained.filming import Film, Frame

AT_ONCE = 2**12  # most episodes played side by side, which is what memory has to hold


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

    Only the first episode of each counts, so that short episodes do not count more often.

    Args:
      agent: acts with its `greedy_actor_step`, or with `actor_step` if not `greedy`.
      actor_params: `agent.actor_params(state.learner)`.
      environment: a single episode, as for `train`.
      episodes: number of episodes.
      seed: random seed of environments and sampled actions.
      greedy: act without exploration.
      max_steps: environment steps after which an episode is abandoned.

    Raises:
      UserError: a number is impossible.
    """
    check_play(episodes, max_steps, seed)
    make_run = _make_run
    try:
        hash(environment)
    except TypeError:  # its program cannot be remembered
        make_run = _make_run.__wrapped__
    run, key = make_run(agent, environment, greedy, max_steps), jax.random.key(seed)
    size = -(-episodes // -(-episodes // AT_ONCE))
    parts = [
        jax.device_get(run(actor_params, key, first + jnp.arange(size)))
        for first in range(0, episodes, size)
    ]
    count, won = jax.tree.map(lambda *x: np.concatenate(x)[:episodes], *parts)
    return Evaluation(
        count.episode_return, count.episode_length, count.finished.astype(bool), won
    )


def film(
    agent: Agent,
    actor_params: Any,
    environment: Environment,
    *,
    episodes: int = 1,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = 1_000,
) -> Film:
    """Plays episodes one after the other; each timestep is a frame.

    The environment's `render(state)` draws them, uint8 [H, W, 3]; its `render_fps` is the
    pace. The other arguments are those of `evaluate`.

    Args:
      max_steps: environment steps after which the film ends even if the episodes have
        not.

    Raises:
      ValueError: the environment has no `render`, or a number is impossible.
    """
    filming.check(episodes, max_steps, seed)
    drawing = unwrapped(environment)
    if not hasattr(drawing, "render"):
        raise ValueError(f"{type(drawing).__name__} has no pictures (render(state))")
    machine = auto_reset(environment)
    batched, key = Batched(machine), jax.random.key(seed)
    actor_step = filming.actor_step_of(agent, greedy)

    def draw(actors):
        state = jax.tree.map(lambda x: x[0], actors.environment)
        timestep = jax.tree.map(
            lambda x: x[0], actors.timestep._replace(observation=())
        )
        return actors, Frame(machine.environment.render(state.inner), timestep)

    @jax.jit
    def start():
        return draw(initial_actors(key, jnp.arange(1), agent, batched))

    @jax.jit
    def step(actors, params, number):
        keys = keys_of_step(jax.random.fold_in(key, number), actors.index)
        return draw(interact(actor_step, params, batched, actors, keys)[0])

    def next_frame(actors, number):
        return step(actors, actor_params, number)

    return filming.film(start, next_frame, episodes, max_steps, drawing)


@functools.lru_cache(maxsize=8)  # repeated evaluations compile once
def _make_run(agent: Agent, environment: Environment, greedy: bool, max_steps: int):
    reports_success = hasattr(unwrapped(environment), "succeeded")
    environment = Batched(auto_reset(environment))
    actor_step = filming.actor_step_of(agent, greedy)

    @jax.jit
    def run(params, key, index):
        start_key, run_key = jax.random.split(key)
        actors = initial_actors(start_key, index, agent, environment)

        def succeeded(actors):
            """[B], None where the environment does not say."""
            if not reports_success:
                return None
            goal = jnp.asarray(environment.succeeded(actors.environment), bool)
            return actors.timestep.last() & goal

        def unfinished(carry):
            step, actors, _ = carry
            return (step < max_steps) & ~jnp.all(actors.episodes.finished)

        def body(carry):
            step, before, won = carry
            keys = keys_of_step(jax.random.fold_in(run_key, step), before.index)
            after, _ = interact(actor_step, params, environment, before, keys)
            over = before.episodes.finished > 0
            count, won = jax.tree.map(
                lambda old, new: jnp.where(over, old, new),
                (before.episodes, won),
                (after.episodes, succeeded(after)),
            )
            return step + 1, after._replace(episodes=count), won

        start = (0, actors, succeeded(actors))
        _, actors, won = jax.lax.while_loop(unfinished, body, start)
        return actors.episodes, won

    return run
