"""The PPO of stable-baselines3, sb3-contrib or sbx on EnvPool: steps/s, as one line of JSON.

    python sb3_ppo.py WORK

WORK is a `work.Work` as JSON, with `library`: stable_baselines3, sb3_contrib, whose PPO
has LSTMs, or sbx, a version in JAX. Runs in an environment of its own. EnvPool resets
finished environments by itself.
"""

import importlib
import os

import torch
from envpool_sb3 import Pool
from work import Speed, Work, answer, seconds


def measure(work: Work, library: str) -> Speed:
    algorithm, policy, options = "PPO", "CnnPolicy", {}  # DQN's network
    if not work.torso:
        torch.set_num_threads(1)  # more are slower with networks this small
        policy, options = "MlpPolicy", {"net_arch": work.hidden_sizes}
    if work.memory:
        algorithm, policy = "RecurrentPPO", "MlpLstmPolicy"
        options["lstm_hidden_size"] = work.memory
    batch = work.batch_size * work.unroll_length
    model = getattr(importlib.import_module(library), algorithm)(
        policy,
        Pool(work.environment, work.batch_size, 0, resets=False),
        n_steps=work.unroll_length,
        batch_size=batch // work.minibatches,
        n_epochs=work.epochs,
        policy_kwargs=options,
        seed=0,
        device="cpu",
    )
    model.learn(2 * batch)  # compiles
    taken = seconds(model.learn, work.steps, reset_num_timesteps=False)
    return Speed(work.steps / taken, os.cpu_count())


if __name__ == "__main__":
    answer(measure)
