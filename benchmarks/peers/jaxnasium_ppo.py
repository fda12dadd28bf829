"""Jaxnasium's PPO: steps/s, as one line of JSON. Runs in an environment of its own.

    python jaxnasium_ppo.py WORK

WORK is a `contest.Work` as JSON. Normalization is off. Two things cannot be left out: in
each step it also predicts the value of the next observation, a second forward pass of that
network, and it takes one step for statistics before training.
"""

import json
import sys
import time

import jax
import jaxnasium
from jaxnasium.algorithms import PPO
from jaxnasium.algorithms.architectures import MLP

ENVIRONMENTS = {"cartpole": "CartPole-v1", "minatar-breakout": "Breakout-MinAtar"}


def main(
    environment: str,
    batch_size: int,
    unroll_length: int,
    epochs: int,
    minibatches: int,
    hidden_sizes: list[int],
    steps: int,
) -> None:
    env = jaxnasium.make(ENVIRONMENTS[environment])
    if environment != "cartpole":
        env = jaxnasium.FlattenObservationWrapper(env)
    body = MLP.with_params(hidden_sizes=hidden_sizes, activation=jax.nn.tanh)
    algorithm = PPO(
        num_envs=batch_size,
        num_steps=unroll_length,
        num_epochs=epochs,
        num_minibatches=minibatches,
        total_timesteps=steps,
        warmup_steps=0,
        normalize_observations=False,
        normalize_rewards=False,
        actor_kwargs={"body": body},
        critic_kwargs={"body": body},
        log_function=None,
        reduce_metrics_fn=lambda metrics: (),
    )
    key = jax.random.PRNGKey(0)
    jax.block_until_ready(algorithm.train(key, env))  # compiles
    started = time.perf_counter()
    jax.block_until_ready(algorithm.train(key, env))
    speed = steps / (time.perf_counter() - started)
    print(json.dumps({"steps_per_second": speed, "devices": jax.device_count()}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
