"""What a policy is worth, and how it looks, in environments on the host."""

from collections.abc import Callable
from typing import Any

import dm_env
import jax
import numpy as np

from podracer.agent import Agent
from podracer.evaluation import Evaluation
from sebulba.host_environments import HostEnvironment


def evaluate(
    agent: Agent,
    actor_params: Any,
    environment: HostEnvironment,
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = 100_000,
    progress: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Acts with `actor_params` until `episodes` are over, as many in each environment.

    How many an environment plays does not depend on how long they are: else short ones
    would count more.

    Args:
      agent: whose `greedy_actor_step` acts, or `actor_step` if not `greedy`.
      actor_params: `agent.actor_params(state.learner)`.
      environment: a batch that was not reset yet; those of lives count lives.
      episodes: N.
      seed: of sampled actions.
      greedy: act without exploration.
      max_steps: environment steps after which an endless episode is given up, and its
        environment plays no more.
      progress: called once an episode.
    """
    size = environment.batch_size
    act = jax.jit(agent.greedy_actor_step if greedy else agent.actor_step)
    left = np.array([len(x) for x in np.array_split(np.arange(episodes), size)])
    total, length = np.zeros(size, np.float32), np.zeros(size, np.int32)
    played, key, steps = [], jax.random.key(seed), 0
    actor_state, timestep = agent.initial_actor_state(size), environment.reset()
    while left.any():
        keys = jax.random.split(jax.random.fold_in(key, steps), size)
        actor_state, output = act(keys, actor_params, actor_state, timestep)
        timestep = environment.step(np.asarray(output.action))
        first, last = timestep.first(), timestep.last()
        total = np.where(first, 0, total + timestep.reward)
        length = np.where(first, 0, length + 1)
        for i in np.flatnonzero((left > 0) & (last | (length >= max_steps))):
            played.append((total[i], length[i], last[i]))
            left[i] = left[i] - 1 if last[i] else 0
            progress()
        steps += 1
    return Evaluation(*map(np.array, zip(*played, strict=True)))


def film(
    agent: Agent,
    actor_params: Any,
    environment: HostEnvironment,
    *,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = 1_000,
) -> list[np.ndarray]:
    """The pictures of one episode, or of its first `max_steps` steps: uint8 [H, W, ...].

    The arguments are those of `evaluate`, but for one environment. Pictures are what it
    renders (`render()`), or else its observations. Raises ValueError where these are no
    pictures.
    """
    act = jax.jit(agent.greedy_actor_step if greedy else agent.actor_step)
    actor_state, timestep = agent.initial_actor_state(1), environment.reset()
    pictures, key = [_picture(environment, timestep)], jax.random.key(seed)
    while not timestep.last()[0] and len(pictures) <= max_steps:
        keys = jax.random.split(jax.random.fold_in(key, len(pictures)), 1)
        actor_state, output = act(keys, actor_params, actor_state, timestep)
        timestep = environment.step(np.asarray(output.action))
        pictures.append(_picture(environment, timestep))
    return pictures


def _picture(environment: HostEnvironment, timestep: dm_env.TimeStep) -> np.ndarray:
    if hasattr(environment, "render"):
        return environment.render()
    seen = timestep.observation
    if isinstance(seen, np.ndarray) and seen.dtype == np.uint8 and seen.ndim in (3, 4):
        return seen[0]
    raise ValueError("it shows no pictures: only native JAX environments and Atari do")
