"""Rejax's PPO: steps/s, as one line of JSON. Runs in an environment of its own.

    python rejax_ppo.py WORK

WORK is a `contest.Work` as JSON. Rejax neither evaluates nor normalizes here. It is one
program of `steps`; the first call compiles.
"""

import json
import sys
import time

import jax
import rejax

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
    algorithm = rejax.PPO.create(
        env=ENVIRONMENTS[environment],
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": tuple(hidden_sizes)},
        num_envs=batch_size,
        num_steps=unroll_length,
        num_epochs=epochs,
        num_minibatches=minibatches,
        learning_rate=3e-4,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda algorithm, state, key: ())
    train = jax.jit(lambda state: algorithm.train(train_state=state)[0])
    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    state = jax.block_until_ready(train(state))  # compiles
    started = time.perf_counter()
    jax.block_until_ready(train(state))
    speed = steps / (time.perf_counter() - started)
    print(json.dumps({"steps_per_second": speed, "devices": jax.device_count()}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
