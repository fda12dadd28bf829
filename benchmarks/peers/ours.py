"""podracer: steps/s, as one line of JSON.

    python -m benchmarks.peers.ours WORK

WORK is a `work.Work` as JSON, with `cores` and `shuffle`. Anakin's environments have
small letters, EnvPool's in Sebulba capital ones. This is `train` as its user sees it, with
the metrics that it reports, after the first reports.
"""

import jax

import anakin
import envs_jax
from benchmarks.peers.work import Speed, Work, answer, seconds
from benchmarks.sebulba import Setting, Task
from podracer import networks, parallel
from podracer.agents import impala, ppo
from sebulba.cores import split

REPORTS = 4  # of Anakin, in a measurement


def measure(work: Work, cores: int, shuffle: str = "unrolls") -> Speed:
    parallel.use_cpu_cores(cores)
    network = (
        networks.Config(work.torso)
        if work.torso
        else networks.Config(
            *("mlp", tuple(work.hidden_sizes), "tanh"),
            separate_value=True,
            memory="lstm" if work.memory else "none",
            memory_size=work.memory or 1,
        )
    )
    config = ppo.Config(
        epochs=work.epochs, minibatches=work.minibatches, shuffle=shuffle
    )
    if work.environment.islower():
        taken = anakin_seconds(work, network, config, cores)
    else:
        learned = (ppo, config) if work.epochs > 1 else (impala, impala.Config())
        task = Task(work.environment, network, *learned)
        placed = split(jax.local_devices())
        setting = Setting(task, work.batch_size, work.unroll_length, 2, placed)
        taken = setting.seconds(work.steps)
    return Speed(work.steps / taken, cores)


def anakin_seconds(
    work: Work, network: networks.Config, config: ppo.Config, cores: int
) -> float:
    """Of `work.steps` after the first report, which compiles."""
    env = envs_jax.make(work.environment)
    network = networks.actor_critic(env.observation_spec(), env.action_spec(), network)
    size = work.batch_size * work.unroll_length
    updates = max(1, work.steps // size // REPORTS)
    run = anakin.train(
        ppo.make_agent(config, network),
        env,
        batch_size=work.batch_size,
        unroll_length=work.unroll_length,
        total_steps=updates * size + work.steps,
        updates_per_report=updates,
        cores=cores,
    )
    next(run)
    return seconds(list, run)


if __name__ == "__main__":
    answer(measure)
