"""Evaluating a policy in environments on the host, and filming one."""

from collections.abc import Callable
from typing import Any

import dm_env
import jax
import numpy as np

from podracer.agent import Agent
from podracer.errors import check_play
from podracer.runs.evaluation import Evaluation
from podracer.trained import filming
from podracer.trained.filming import Film, Frame
from sebulba.host_environments import HostEnvironment
from sebulba.host_environments.environment import capabilities_of
from sebulba.host_environments.protocol import as_declared


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
    """Acts with `actor_params` for `episodes` episodes, divided equally over the batch.

    How many episodes an environment plays does not depend on their length, so that short
    episodes do not count more often.

    Args:
      agent: acts with its `greedy_actor_step`, or with `actor_step` if not `greedy`.
      actor_params: `agent.actor_params(state.learner)`.
      environment: a batch that was not reset yet, which the caller closes; where a life is
        an episode, lives count.
      episodes: number of episodes.
      seed: random seed of sampled actions.
      greedy: act without exploration.
      max_steps: environment steps after which an episode is abandoned; its environment
        plays no further one.
      progress: called after each episode.

    Raises:
      UserError: a number is impossible.
    """
    check_play(episodes, max_steps, seed)
    size = environment.batch_size
    act = jax.jit(filming.actor_step_of(agent, greedy))
    action_spec = environment.action_spec()
    remaining = episodes // size + (np.arange(size) < episodes % size)
    total, length = np.zeros(size), np.zeros(size, np.int32)
    results, key, steps = [], jax.random.key(seed), 0
    actor_state, timestep = agent.initial_actor_state(size), environment.reset()
    reports_success = capabilities_of(environment).success
    while remaining.any():
        keys = jax.random.split(jax.random.fold_in(key, steps), size)
        actor_state, output = act(keys, actor_params, actor_state, timestep)
        timestep = environment.step(as_declared(action_spec, output.action))
        first, last = timestep.first(), timestep.last()
        total = np.where(first, 0, total + timestep.reward)
        length = np.where(first, 0, length + 1)
        won = environment.succeeded() if reports_success else None
        for i in np.flatnonzero((remaining > 0) & (last | (length >= max_steps))):
            success = None if won is None else bool(won[i] & last[i])
            results.append((np.float32(total[i]), length[i], last[i], success))
            remaining[i] = remaining[i] - 1 if last[i] else 0
            progress()
        steps += 1
    *columns, success = zip(*results, strict=True)
    is_known = any(x is not None for x in success)
    succeeded = np.array([bool(x) for x in success]) if is_known else None
    return Evaluation(*map(np.array, columns), succeeded)


def film(
    agent: Agent,
    actor_params: Any,
    environment: HostEnvironment,
    *,
    episodes: int = 1,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = 1_000,
) -> Film:
    """Plays episodes one after the other; each timestep is a frame.

    A frame's picture is what the environment renders (`render()`, at `render_fps` frames
    per second), or else its observation, uint8 [H, W, C]. The other arguments are those of
    `evaluate`.

    Args:
      environment: a batch of one.
      max_steps: environment steps after which the film ends even if the episodes have
        not.

    Raises:
      ValueError: the environment neither renders nor observes pictures, or a number is
        impossible.
    """
    filming.check(episodes, max_steps, seed)
    act, key = jax.jit(filming.actor_step_of(agent, greedy)), jax.random.key(seed)
    action_spec = environment.action_spec()

    def draw(actor_state, timestep):
        bare = jax.tree.map(lambda x: x[0], timestep._replace(observation=()))
        return (actor_state, timestep), Frame(_picture(environment, timestep), bare)

    def start():
        return draw(agent.initial_actor_state(1), environment.reset())

    def step(state, number):
        keys = jax.random.split(jax.random.fold_in(key, number), 1)
        actor_state, output = act(keys, actor_params, *state)
        action = as_declared(action_spec, output.action)
        return draw(actor_state, environment.step(action))

    return filming.film(start, step, episodes, max_steps, environment)


def _picture(environment: HostEnvironment, timestep: dm_env.TimeStep) -> np.ndarray:
    if capabilities_of(environment).render:
        return environment.render()
    image = timestep.observation
    is_array = isinstance(image, np.ndarray) and image.dtype == np.uint8
    if is_array and image.ndim in (3, 4):
        return image[0]
    raise ValueError(
        "it has no pictures: JAX environments, Atari, image observations, dm_control and "
        "gymnasium's with the render_mode rgb_array have some"
    )
