"""What a policy is worth: the first episode in each of N environments, to its end."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

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
