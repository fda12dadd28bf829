"""The PPO of stable-baselines3 or sbx on EnvPool: steps/s, as one line of JSON.

    python sb3_ppo.py WORK

WORK is a `contest.Work` as JSON, with `library`: stable_baselines3 or sbx, its version in
JAX. Runs in an environment of its own. EnvPool resets finished environments by itself.
"""

import importlib
import json
import os
import sys
import time

import torch
from envpool_sb3 import Pool


def main(
    library: str,
    environment: str,
    batch_size: int,
    unroll_length: int,
    epochs: int,
    minibatches: int,
    hidden_sizes: list[int],
    steps: int,
) -> None:
    policy, options = "CnnPolicy", {}  # DQN's network
    if hidden_sizes:
        torch.set_num_threads(1)  # more are slower with networks this small
        policy, options = "MlpPolicy", {"net_arch": hidden_sizes}
    batch = batch_size * unroll_length
    model = importlib.import_module(library).PPO(
        policy,
        Pool(environment, batch_size, 0, resets=False),
        n_steps=unroll_length,
        batch_size=batch // minibatches,
        n_epochs=epochs,
        policy_kwargs=options,
        seed=0,
        device="cpu",
    )
    model.learn(2 * batch)  # compiles
    started = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    speed = steps / (time.perf_counter() - started)
    print(json.dumps({"steps_per_second": speed, "devices": os.cpu_count()}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
