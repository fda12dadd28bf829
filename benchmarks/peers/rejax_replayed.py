"""Rejax's SAC or DQN: steps/s, as one line of JSON. Runs in an environment of its own.

    python rejax_replayed.py WORK

WORK is a `work.Replayed` as JSON. Rejax updates after each step of all environments; it
neither evaluates nor normalizes here. It is one program of `steps`; the first call compiles.
"""

import flax.linen as nn
import jax
import rejax
from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy
from work import CAPACITY, Replayed, Speed, answer, seconds

ENVIRONMENTS = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}


def measure(work: Replayed) -> Speed:
    sizes = {"hidden_layer_sizes": tuple(work.hidden_sizes)}
    is_dqn = work.algorithm == "DQN"
    algorithm = (
        getattr(rejax, work.algorithm)
        .create(
            env=ENVIRONMENTS[work.environment],
            num_envs=work.batch_size,
            num_epochs=work.updates_after_step,
            batch_size=work.transitions,
            buffer_size=CAPACITY,
            fill_buffer=0,
            learning_rate=3e-4,
            total_timesteps=work.steps,
            eval_freq=work.steps,
            skip_initial_evaluation=True,
            **({"ddqn": False} if is_dqn else sizes),
        )
        .replace(eval_callback=lambda algorithm, state, key: ())
    )
    if is_dqn:  # whose `create` always makes layers of 64
        network = EpsilonGreedyPolicy(DiscreteQNetwork)
        network = network(action_dim=2, activation=nn.relu, **sizes)
        algorithm = algorithm.replace(agent=network)
    train = jax.jit(
        lambda state: algorithm.train(train_state=state)[0], donate_argnums=0
    )
    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    state = jax.block_until_ready(train(state))  # compiles
    taken = seconds(lambda: jax.block_until_ready(train(state)))
    return Speed(work.steps / taken, jax.device_count())


if __name__ == "__main__":
    answer(measure, Replayed)
