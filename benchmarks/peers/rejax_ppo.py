"""Rejax's PPO: steps/s, as one line of JSON. Runs in an environment of its own.

    python rejax_ppo.py WORK

WORK is a `work.Work` as JSON. Rejax neither evaluates nor normalizes here. It is one
program of `steps`; the first call compiles.
"""

import jax
import rejax
from work import Speed, Work, answer, seconds

ENVIRONMENTS = {"cartpole": "CartPole-v1", "minatar-breakout": "Breakout-MinAtar"}


def measure(work: Work) -> Speed:
    units = tuple(work.hidden_sizes)
    algorithm = rejax.PPO.create(
        env=ENVIRONMENTS[work.environment],
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": units},
        num_envs=work.batch_size,
        num_steps=work.unroll_length,
        num_epochs=work.epochs,
        num_minibatches=work.minibatches,
        learning_rate=3e-4,
        total_timesteps=work.steps,
        eval_freq=work.steps,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda algorithm, state, key: ())
    train = jax.jit(lambda state: algorithm.train(train_state=state)[0])
    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    state = jax.block_until_ready(train(state))  # compiles
    taken = seconds(lambda: jax.block_until_ready(train(state)))
    return Speed(work.steps / taken, jax.device_count())


if __name__ == "__main__":
    answer(measure)
