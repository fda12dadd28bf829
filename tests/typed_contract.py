"""The public contract, as a user's type checker sees it: each protocol, implemented once.

`make lint` checks this file with mypy; `tests/test_typing.py` breaks it on purpose.
"""

import dataclasses
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.environment import Environment, Key, restart, transition
from podracer.agent import ActorOutput, Agent, LearnerState, Metrics, Trajectory
from podracer.networks.network import Network
from sebulba.host_environments.environment import Games, HostEnvironment


class Position(NamedTuple):
    x: jax.Array  # int32 []


@dataclasses.dataclass(frozen=True)
class Walk:
    """Steps to the right or the left; the right end has a reward."""

    length: int = 5

    def initial_state(self, key: Key) -> tuple[Position, dm_env.TimeStep]:
        state = Position(jax.random.randint(key, (), 0, self.length))
        return state, restart(state.x)

    def step(
        self, key: Key, state: Position, action: jax.Array
    ) -> tuple[Position, dm_env.TimeStep]:
        state = Position(state.x + 2 * action - 1)
        return state, transition(state.x, state.x, state.x >= self.length)

    def observation_spec(self) -> dm_env.specs.Array:
        return dm_env.specs.Array((), np.int32)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(2)


class HostWalk:
    """The same on the host, B at once."""

    batch_size: int = 2
    frames_per_step: int = 1

    def reset(self) -> dm_env.TimeStep:
        self.x = np.zeros(2, np.int32)
        return dm_env.restart(self.x)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self.x = self.x + 2 * action - 1
        return dm_env.transition(np.float32(self.x), self.x)

    def observation_spec(self) -> Any:
        return dm_env.specs.Array((), np.int32)

    def action_spec(self) -> Any:
        return dm_env.specs.DiscreteArray(2)

    def finished_games(self) -> Games | None:
        return None

    def lost_episodes(self) -> int:
        return 0

    def close(self) -> None:
        pass


def make_network() -> Network:
    """Predicts the action's logits from a table."""

    def init(key: Key) -> jax.Array:
        return jax.random.normal(key, (8, 2))

    def initial_memory(batch_size: int) -> tuple[()]:
        return ()

    def step(
        params: jax.Array, memory: tuple[()], timestep: dm_env.TimeStep
    ) -> tuple[tuple[()], jax.Array]:
        return memory, params[timestep.observation]

    def unroll(
        params: jax.Array, memory: tuple[()], timesteps: dm_env.TimeStep
    ) -> jax.Array:
        return params[timesteps.observation]

    return Network(init, initial_memory, step, unroll, Walk().observation_spec())


def make_agent(network: Network) -> Agent:
    """Acts by the network's logits and never learns."""

    def initial_learner_state(key: Key) -> LearnerState:
        return LearnerState(shared=network.init(key), local=())

    def learner_step(
        key: Key, state: LearnerState, trajectory: Trajectory
    ) -> tuple[LearnerState, Metrics]:
        return state, {"reward": jnp.mean(trajectory.timesteps.reward)}

    def actor_params(state: LearnerState) -> jax.Array:
        return state.shared

    def actor_step(
        keys: Key, params: jax.Array, memory: tuple[()], timestep: dm_env.TimeStep
    ) -> tuple[tuple[()], ActorOutput]:
        memory, logits = network.step(params, memory, timestep)
        action = jax.vmap(jax.random.categorical)(keys, logits)
        return memory, ActorOutput(action, extras=logits)

    def greedy_actor_step(
        keys: Key, params: jax.Array, memory: tuple[()], timestep: dm_env.TimeStep
    ) -> tuple[tuple[()], ActorOutput]:
        memory, logits = network.step(params, memory, timestep)
        return memory, ActorOutput(jnp.argmax(logits, -1), extras=logits)

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        network.initial_memory,
        actor_step,
        greedy_actor_step,
    )


environment: Environment = Walk()
host_environment: HostEnvironment = HostWalk()
agent: Agent = make_agent(make_network())
