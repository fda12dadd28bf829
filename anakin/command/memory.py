"""What `anakin train` holds in memory at least: its state and a trajectory."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from anakin import training
from anakin.acting import unroll
from envs_jax.environment import Environment
from envs_jax.wrappers import batched
from podracer.agent import Agent
from podracer.parallel import hosts
from podracer.training import memory


def check(
    make_agent: Callable[[Mapping[str, Any]], Agent],
    environment: Environment,
    config: Any,
    runs: int,
) -> None:
    """Raises UserError where a run of `anakin train` cannot fit into memory.

    Args:
      make_agent: (no hyperparameters) -> its agent.
      environment: of one episode.
      config: of the command.
      runs: how many there are side by side; 0 for one alone.
    """
    count, length = config.batch_size // hosts.number_of(), config.unroll_length
    agent, spec = make_agent({}), environment.observation_spec()
    copies = runs or config.cores or jax.local_device_count()
    runs, most = runs or 1, memory.available()
    replayed = memory.replayed(agent, spec, config)
    learner = memory.of_learner(agent, copies, most)
    held = learner + replayed.check(most, hosts.number_of(), runs)

    def estimate() -> int:
        """Bytes on this host that grow with the batch."""
        besides = replayed.size + learner // copies
        return (size(agent, environment, count, length) - besides) * runs

    memory.check(count * runs, length + 1, spec, estimate, held)


def size(agent: Agent, environment: Environment, batch_size: int, length: int) -> int:
    """Bytes of a run's state and of a trajectory of `length` steps; nothing is computed."""
    environment = batched(environment)

    def held(key: jax.Array, index: jax.Array) -> Any:
        state = training.initial_state(key, index, agent, environment)
        params = agent.actor_params(state.learner)
        _, trajectory = unroll(
            agent.actor_step, params, environment, length, state.actors, state.key
        )
        return state, trajectory

    key = jax.eval_shape(jax.random.key, 0)
    index = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    return memory.size_of(jax.eval_shape(held, key, index))
