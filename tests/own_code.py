"""An environment, a network and an agent as a user would write them, from the docs alone.

As a program, it is a user's script: `python own_code.py RUN [SECONDS]` records a run in the
folder RUN, or continues it, and sleeps after each report.
"""

import dataclasses
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from envs_jax import restart, transition
from podracer.agent import ActorOutput, Agent, LearnerState
from podracer.parallel import AVERAGE

OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "unroll_length": 5,
    "total_steps": 4_000,
    "updates_per_report": 5,
    "cores": 2,
}


@dataclasses.dataclass(frozen=True)
class Sides:
    """Action 1 pays where the observation is positive, action 0 where it is not."""

    length: int = 10

    def initial_state(self, key):
        x = jax.random.uniform(key, (1,), minval=-1.0)
        return (key, x, jnp.int32(0)), restart(x)

    def step(self, key, state, action):
        first, x, steps = state
        reward = jnp.where((x[0] > 0) == (action == 1), 1.0, 0.0)
        x = jax.random.uniform(key, (1,), minval=-1.0)
        state = first, x, steps + 1
        return state, transition(reward, x, terminated=steps + 1 >= self.length)

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)


def logits(params, observation):
    """The network: one linear layer."""
    return observation @ params["weight"] + params["bias"][None]


def make_agent(average=AVERAGE, learning_rate=0.5) -> Agent:
    """REINFORCE with immediate rewards."""

    def initial_learner_state(key):
        weight = 0.01 * jax.random.normal(key, (1, 2))
        return LearnerState({"weight": weight, "bias": jnp.zeros(2)}, ())

    def initial_actor_state(batch_size):
        return jnp.zeros(batch_size)

    def actor_step(keys, params, actor_state, timestep):
        choose = jax.vmap(jax.random.categorical)
        action = choose(keys, logits(params, timestep.observation))
        return actor_state + timestep.reward, ActorOutput(action.astype(jnp.int32), ())

    def greedy_actor_step(keys, params, actor_state, timestep):
        action = jnp.argmax(logits(params, timestep.observation), axis=-1)
        return actor_state + timestep.reward, ActorOutput(action.astype(jnp.int32), ())

    def loss(params, trajectory):
        observation = trajectory.timesteps.observation[:-1]
        rows = observation.reshape(-1, 1)
        log_probs = jax.nn.log_softmax(logits(params, rows))
        action = trajectory.outputs.action.reshape(-1, 1)
        chosen = jnp.take_along_axis(log_probs, action, axis=-1)[:, 0]
        reward = trajectory.timesteps.reward[1:].reshape(-1) - 0.5
        mask = ~trajectory.timesteps.first()[1:].reshape(-1)
        return -jnp.mean(chosen * reward * mask)

    def learner_step(key, learner_state, trajectory):
        value, gradient = jax.value_and_grad(loss)(learner_state.shared, trajectory)
        params = jax.tree.map(
            lambda x, dx: x - learning_rate * dx,
            learner_state.shared,
            average(gradient),
        )
        return LearnerState(params, ()), {"loss/total": value}

    return Agent(
        initial_learner_state,
        learner_step,
        lambda learner_state: learner_state.shared,
        initial_actor_state,
        actor_step,
        greedy_actor_step,
    )


if __name__ == "__main__":
    import anakin
    import podracer

    folder, *seconds = sys.argv[1:]
    for _state, _metrics in podracer.record(
        anakin.train,
        make_agent(),
        Sides(),
        run=folder,
        resume=True,
        checkpoint_steps=200,
        **OPTIONS,
    ):
        time.sleep(float(*seconds or [0]))
