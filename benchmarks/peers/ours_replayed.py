"""podracer's SAC or DQN: steps/s, as one line of JSON.

    python -m benchmarks.peers.ours_replayed WORK

WORK is a `work.Replayed` as JSON, with `cores`. This is Anakin's `train` as its user sees
it, with the metrics that it reports, after the first report.
"""

import anakin
import envs_jax
from benchmarks.peers.work import CAPACITY, Replayed, Speed, answer, seconds
from podracer import parallel
from podracer.agents import algorithm, dqn, from_flags, sac
from podracer.transformations import Interface
from podracer.transformations.replay import Config as Replay

AGENTS = {
    "SAC": (sac, sac.Config(), sac.NetworkConfig),
    "DQN": (dqn, dqn.Config(double=False), dqn.NetworkConfig),
}


def measure(work: Replayed, cores: int) -> Speed:
    parallel.use_cpu_cores(cores)
    env = envs_jax.make(work.environment)
    batch_size, length = work.batch_size, work.unroll_length
    trajectories = work.transitions // length  # of an update
    module, config, network = AGENTS[work.algorithm]
    agent = from_flags.make_agent(
        from_flags.Parts(
            algorithm.of(module),
            config,
            network(hidden_sizes=tuple(work.hidden_sizes)),
            env.observation_spec(),
            env.action_spec(),
            Interface(),
            replay=Replay(
                capacity=CAPACITY // length,
                samples_per_insert=work.updates * trajectories / batch_size,
                fresh=False,
                updates=work.updates,
            ),
            unroll_length=length,
        )
    )
    run = anakin.train(
        agent,
        env,
        batch_size=batch_size,
        unroll_length=length,
        total_steps=2 * work.steps,
        updates_per_report=work.steps // (batch_size * length),
        cores=cores,
    )
    next(run)  # compiles
    return Speed(work.steps / seconds(list, run), cores)


if __name__ == "__main__":
    answer(measure, Replayed)
