"""Jaxnasium's DQN: steps/s, as one line of JSON. Runs in an environment of its own.

    python jaxnasium_dqn.py WORK

WORK is a `work.Replayed` as JSON. Normalization is off. The first transitions to learn from
are collected in each run, a step of each environment or as many as an update learns from.
"""

import jax
import jaxnasium
from jaxnasium.algorithms import DQN
from jaxnasium.algorithms.architectures import MLP
from jaxnasium_ppo import ENVIRONMENTS, QUIET, speed
from work import CAPACITY, Replayed, Speed, answer


def measure(work: Replayed) -> Speed:
    body = MLP.with_params(hidden_sizes=work.hidden_sizes, activation=jax.nn.relu)
    algorithm = DQN(
        num_envs=work.batch_size,
        update_every=work.batch_size * work.unroll_length,
        num_updates=work.updates,
        batch_size=work.transitions,
        replay_buffer_size=CAPACITY,
        total_timesteps=work.steps,
        warmup_steps=0,
        critic_kwargs={"body": body},
        **QUIET,
    )
    return speed(work, algorithm, jaxnasium.make(ENVIRONMENTS[work.environment]))


if __name__ == "__main__":
    answer(measure, Replayed)
