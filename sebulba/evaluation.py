"""What a policy is worth in environments on the host: whole episodes, to their end."""

from typing import Any

import dm_env
import jax
import numpy as np

from podracer.agent import Agent
from podracer.evaluation import Evaluation
from sebulba.host_environments import HostEnvironment

FIRST, _, LAST = dm_env.StepType


def evaluate(
    agent: Agent,
    actor_params: Any,
    environment: HostEnvironment,
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = 100_000,
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
        first, last = (timestep.step_type == kind for kind in (FIRST, LAST))
        total = np.where(first, 0, total + timestep.reward)
        length = np.where(first, 0, length + 1)
        for i in np.flatnonzero((left > 0) & (last | (length >= max_steps))):
            played.append((total[i], length[i], last[i]))
            left[i] = left[i] - 1 if last[i] else 0
        steps += 1
    return Evaluation(*map(np.array, zip(*played, strict=True)))
