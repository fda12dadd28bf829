"""Jaxnasium's PPO: steps/s, as one line of JSON. Runs in an environment of its own.

    python jaxnasium_ppo.py WORK

WORK is a `work.Work` as JSON. Normalization is off. Two things cannot be left out: in
each step it also predicts the value of the next observation, a second forward pass of that
network, and it takes one step for statistics before training.
"""

import jax
import jaxnasium
from jaxnasium.algorithms import PPO
from jaxnasium.algorithms.architectures import MLP
from work import Replayed, Speed, Work, answer, seconds

ENVIRONMENTS = {"cartpole": "CartPole-v1", "minatar-breakout": "Breakout-MinAtar"}
QUIET = {  # options of any algorithm: neither normalization nor metrics
    "normalize_observations": False,
    "normalize_rewards": False,
    "log_function": None,
    "reduce_metrics_fn": lambda metrics: (),
}


def measure(work: Work) -> Speed:
    env = jaxnasium.make(ENVIRONMENTS[work.environment])
    if work.environment != "cartpole":
        env = jaxnasium.FlattenObservationWrapper(env)
    body = MLP.with_params(hidden_sizes=work.hidden_sizes, activation=jax.nn.tanh)
    algorithm = PPO(
        num_envs=work.batch_size,
        num_steps=work.unroll_length,
        num_epochs=work.epochs,
        num_minibatches=work.minibatches,
        total_timesteps=work.steps,
        warmup_steps=0,
        actor_kwargs={"body": body},
        critic_kwargs={"body": body},
        **QUIET,
    )
    return speed(work, algorithm, env)


def speed(work: Work | Replayed, algorithm, env: jaxnasium.Environment) -> Speed:
    """Of a run that is compiled."""
    key = jax.random.PRNGKey(0)

    def train():
        jax.block_until_ready(algorithm.train(key, env))

    train()  # compiles
    return Speed(work.steps / seconds(train), jax.device_count())


if __name__ == "__main__":
    answer(measure)
