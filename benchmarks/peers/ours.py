"""podracer: steps/s, as one line of JSON.

    python -m benchmarks.peers.ours WORK

WORK is a `contest.Work` as JSON, with `cores` and `shuffle`. Anakin's environments have
small letters, EnvPool's in Sebulba capital ones. This is `train` as its user sees it, with
the metrics that it reports, after the first reports.
"""

import json
import sys
import time

import jax

import anakin
import envs_jax
from benchmarks.sebulba import Setting, Task
from podracer import networks, parallel
from podracer.agents import impala, ppo
from sebulba.cores import split

REPORTS = 4  # of Anakin, in a measurement


def main(
    environment: str,
    batch_size: int,
    unroll_length: int,
    epochs: int,
    minibatches: int,
    hidden_sizes: list[int],
    steps: int,
    cores: int,
    shuffle: str = "unrolls",
) -> None:
    parallel.use_cpu_cores(cores)
    network = networks.Config(torso="shallow")  # DQN's
    if hidden_sizes:
        network = networks.Config(
            "mlp", tuple(hidden_sizes), "tanh", separate_value=True
        )
    config = ppo.Config(epochs=epochs, minibatches=minibatches, shuffle=shuffle)
    size = batch_size * unroll_length
    if environment.islower():
        env = envs_jax.make(environment)
        network = networks.actor_critic(
            env.observation_spec(), env.action_spec(), network
        )
        updates = max(1, steps // size // REPORTS)
        run = anakin.train(
            ppo.make_agent(config, network),
            env,
            batch_size=batch_size,
            unroll_length=unroll_length,
            total_steps=updates * size + steps,
            updates_per_report=updates,
            cores=cores,
        )
        next(run)
        started = time.perf_counter()
        for _ in run:
            pass
        seconds = time.perf_counter() - started
    else:
        learned = (ppo, config) if epochs > 1 else (impala, impala.Config())
        task = Task(environment, network, *learned)
        placed = split(jax.local_devices())
        setting = Setting(task, batch_size, unroll_length, 2, placed)
        seconds = setting.seconds(steps)
    print(json.dumps({"steps_per_second": steps / seconds, "devices": cores}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
