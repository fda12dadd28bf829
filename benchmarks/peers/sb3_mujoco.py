"""Stable-baselines3's PPO learns a MuJoCo environment of EnvPool, for `benchmarks.learning`.

    python -m benchmarks.peers.sb3_mujoco --env HalfCheetah-v4 --run FOLDER

With stable-baselines3's defaults, which are those of MuJoCo in the paper (arXiv:1707.06347), and
normalized observations and rewards, in an environment of its own, which it makes. Leaves
config.json and metrics.jsonl as a run of ours does: each row has the steps so far, the mean
return of the episodes that finished since the last row, how many, and the seconds.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.peers import environments

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
    options.run.mkdir(parents=True, exist_ok=True)
    versions = {"stable-baselines3": sb3.__version__, "torch": torch.__version__}
    train = SETTINGS | {"environments": BATCH_SIZE}
    config = {"versions": versions, "config": {"train": train}}
    (options.run / "config.json").write_text(json.dumps(config, indent=2))
    monitored = VecMonitor(Pool(options.env, BATCH_SIZE, options.seed))
    env = VecNormalize(monitored, gamma=SETTINGS["gamma"])
    started = time.perf_counter()

    class Record(BaseCallback):
        """Writes a row after each unroll in which episodes finished."""

        def __init__(self):
            super().__init__()
            self.returns = []

        def _on_step(self):
            episodes = (i["episode"] for i in self.locals["infos"] if "episode" in i)
            self.returns += [float(episode["r"]) for episode in episodes]
            return True

        def _on_rollout_end(self):
            if not self.returns:
                return
            row = {
                "steps": self.num_timesteps,
                "episode_return": sum(self.returns) / len(self.returns),
                "episodes": len(self.returns),
                "seconds": round(time.perf_counter() - started, 2),
            }
            self.returns = []
            file.write(json.dumps(row) + "\n")
            file.flush()
            if not options.quiet:
                print(row, flush=True)

    with open(options.run / "metrics.jsonl", "w") as file:
        how = {"seed": options.seed, "device": "cpu", **SETTINGS}
        sb3.PPO("MlpPolicy", env, **how).learn(options.total_steps, callback=Record())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--total-steps", type=int, default=1_000_000)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--overwrite", action="store_true", help="it is, in any case")
    parser.add_argument("--quiet", action="store_true", help="print no rows")
    options = parser.parse_args()
    if sys.prefix != str(environments.FOLDER / "sb3"):
        if not environments.is_available("sb3"):
            sys.exit()
        python = str(environments.python_of("sb3"))
        os.execv(python, [python, "-m", __spec__.name, *sys.argv[1:]])
    main(options)
