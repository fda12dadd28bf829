"""Brax's PPO or SAC learns one of its environments, for `benchmarks.learning`.

    python -m benchmarks.peers.brax_learning --agent sac --env hopper --run FOLDER

In an environment of its own, which it makes. SAC has the settings of brax's own notebook for Hopper;
PPO those of MuJoCo in the paper (arXiv:1707.06347), in brax's terms: 2,048 steps between updates,
from 128 environments. Leaves what a run of ours does (`recorded`): a row after each of ten
evaluations with sampled actions.
"""

import argparse
from importlib import metadata

from benchmarks.peers import environments, recorded

EVALUATIONS = 10
EPISODES = 32  # of an evaluation
EPISODE_LENGTH = 1_000
SETTINGS = {
    "ppo": {
        "num_envs": 128,
        "unroll_length": 16,
        "batch_size": 4,
        "num_minibatches": 32,
        "num_updates_per_batch": 10,
        "learning_rate": 3e-4,
        "entropy_cost": 0.0,
        "discounting": 0.99,
        "clipping_epsilon": 0.2,
        "normalize_observations": True,
    },
    "sac": {
        "num_envs": 128,
        "batch_size": 512,
        "grad_updates_per_step": 64,
        "learning_rate": 6e-4,
        "discounting": 0.997,
        "reward_scaling": 30,
        "max_replay_size": 2**20,
        "min_replay_size": 8_192,
        "normalize_observations": True,
    },
}


def main(options: argparse.Namespace) -> None:
    from brax import envs
    from brax.training.agents.ppo import train as ppo
    from brax.training.agents.sac import train as sac

    from benchmarks.peers import brax_on_jax

    brax_on_jax.mend()
    versions = {name: metadata.version(name) for name in ("jax", "brax")}
    settings = SETTINGS[options.agent]
    run = recorded.Run(options, versions, settings)

    def write(steps, results):
        if steps:  # the first is before it learns
            run.write(int(steps), float(results["eval/episode_reward"]), EPISODES)

    {"ppo": ppo, "sac": sac}[options.agent].train(
        envs.get_environment(options.env),
        num_timesteps=options.total_steps,
        episode_length=EPISODE_LENGTH,
        num_evals=EVALUATIONS + 1,
        num_eval_envs=EPISODES,
        seed=options.seed,
        progress_fn=write,
        **settings,
    )


if __name__ == "__main__":
    flags = recorded.flags(__doc__, env="hopper")
    flags.add_argument("--agent", choices=tuple(SETTINGS), default="ppo")
    options = flags.parse_args()
    environments.enter("brax")
    main(options)
