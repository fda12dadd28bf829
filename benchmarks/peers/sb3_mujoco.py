"""Stable-baselines3's PPO learns a MuJoCo environment of EnvPool, for `benchmarks.learning`.

    python -m benchmarks.peers.sb3_mujoco --env HalfCheetah-v4 --run FOLDER

With stable-baselines3's defaults, which are those of MuJoCo in the paper (arXiv:1707.06347), and
normalized observations and rewards, in an environment of its own, which it makes. Leaves what a
run of ours does (`recorded`): a row after each unroll in which episodes finished.
"""

import argparse

from benchmarks.peers import environments, recorded

BATCH_SIZE = 8  # environments, which share the steps of an update
SETTINGS = {"n_steps": 2_048 // BATCH_SIZE, "batch_size": 64, "n_epochs": 10}
SETTINGS |= {
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "learning_rate": 3e-4,
    "clip_range": 0.2,
}


def main(options: argparse.Namespace) -> None:
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

    from benchmarks.peers.envpool_sb3 import Pool

    torch.set_num_threads(1)  # more are slower with networks this small
    versions = {"stable-baselines3": sb3.__version__, "torch": torch.__version__}
    run = recorded.Run(options, versions, SETTINGS | {"environments": BATCH_SIZE})
    monitored = VecMonitor(Pool(options.env, BATCH_SIZE, options.seed))
    env = VecNormalize(monitored, gamma=SETTINGS["gamma"])

    class Record(BaseCallback):
        def __init__(self):
            super().__init__()
            self.returns = []

        def _on_step(self):
            episodes = (i["episode"] for i in self.locals["infos"] if "episode" in i)
            self.returns += [float(episode["r"]) for episode in episodes]
            return True

        def _on_rollout_end(self):
            if count := len(self.returns):
                run.write(self.num_timesteps, sum(self.returns) / count, count)
                self.returns = []

    how = {"seed": options.seed, "device": "cpu", **SETTINGS}
    sb3.PPO("MlpPolicy", env, **how).learn(options.total_steps, callback=Record())


if __name__ == "__main__":
    options = recorded.flags(__doc__, env="HalfCheetah-v4").parse_args()
    environments.enter("sb3")
    main(options)
