"""The SAC or DQN of stable-baselines3 or sbx on EnvPool: steps/s, as one line of JSON.

    python sb3_replayed.py WORK

WORK is a `work.Replayed` as JSON, with `library`: stable_baselines3 or sbx, its version in
JAX. Runs in an environment of its own. EnvPool resets finished environments by itself.
"""

import importlib
import os

import torch
from envpool_sb3 import Pool
from work import CAPACITY, Replayed, Speed, answer, seconds

ENVIRONMENTS = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}


def measure(work: Replayed, library: str) -> Speed:
    if work.transitions <= 256:
        # PyTorch's threads wait for one another where anything else runs: 3 rather than 60
        # steps/s on two processors at a load of 7.
        torch.set_num_threads(1)
    round_of_updates = work.batch_size * work.unroll_length
    # Exploration that decays would leave out forward passes at first.
    options = {"exploration_initial_eps": 0.05} if work.algorithm == "DQN" else {}
    model = getattr(importlib.import_module(library), work.algorithm)(
        "MlpPolicy",
        Pool(ENVIRONMENTS[work.environment], work.batch_size, 0, resets=False),
        buffer_size=CAPACITY,
        learning_starts=0,
        batch_size=work.transitions,
        train_freq=work.unroll_length,
        gradient_steps=work.updates,
        policy_kwargs={"net_arch": work.hidden_sizes},
        seed=0,
        device="cpu",
        **options,
    )
    model.learn(2 * round_of_updates)  # compiles
    taken = seconds(model.learn, work.steps, reset_num_timesteps=False)
    return Speed(work.steps / taken, os.cpu_count())


if __name__ == "__main__":
    answer(measure, Replayed)
