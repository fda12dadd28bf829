"""Rejax's SAC: steps/s, as one line of JSON. Runs in an environment of its own.

    python rejax_sac.py WORK

WORK is a `work.Replayed` as JSON. Rejax updates after each step of all environments; it
neither evaluates nor normalizes here. It is one program of `steps`; the first call compiles.
"""

import jax
import rejax
from work import CAPACITY, Replayed, Speed, answer, seconds

ENVIRONMENTS = {"pendulum": "Pendulum-v1"}


def measure(work: Replayed) -> Speed:
    algorithm = rejax.SAC.create(
        env=ENVIRONMENTS[work.environment],
        hidden_layer_sizes=tuple(work.hidden_sizes),
        num_envs=work.batch_size,
        num_epochs=work.updates_after_step,
        batch_size=work.transitions,
        buffer_size=CAPACITY,
        fill_buffer=0,
        learning_rate=3e-4,
        total_timesteps=work.steps,
        eval_freq=work.steps,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda algorithm, state, key: ())
    train = jax.jit(
        lambda state: algorithm.train(train_state=state)[0], donate_argnums=0
    )
    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    state = jax.block_until_ready(train(state))  # compiles
    taken = seconds(lambda: jax.block_until_ready(train(state)))
    return Speed(work.steps / taken, jax.device_count())


if __name__ == "__main__":
    answer(measure, Replayed)
