"""Rejax's PPO on CartPole: steps/s, as one line of JSON. Runs in an environment of its own.

    python rejax_cartpole.py BATCH_SIZE UNROLL_LENGTH STEPS

It neither evaluates nor normalizes. It is one program of `steps`; the first call compiles.
"""

import json
import sys
import time

import jax
import rejax


def main(batch_size: int, unroll_length: int, steps: int) -> None:
    algorithm = rejax.PPO.create(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        num_envs=batch_size,
        num_steps=unroll_length,
        num_epochs=4,
        num_minibatches=4,
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
    main(*map(int, sys.argv[1:]))
