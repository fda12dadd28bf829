"""Stable-baselines3's PPO learns EnvPool's HalfCheetah-v4; a line of JSON an update.

    python benchmarks/peers/sb3_halfcheetah.py --seed 0 --steps 1000000 --out FILE

Runs in an environment of its own, which it makes. A line has the steps so far, the mean
return of the episodes that finished since the last line, how many, and the wall seconds.
The presets: `standard`, stable-baselines3's defaults, which are those of MuJoCo in the
paper (arXiv:1707.06347); `zoo`, what rl-baselines3-zoo tuned for HalfCheetah-v3.
"""

import argparse
import json
import os
import sys
import time

import environments

ENVIRONMENT = "HalfCheetah-v4"
ZOO = {
    "n_steps": 512,
    "batch_size": 64,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.92,
    "learning_rate": 2.0633e-05,
    "ent_coef": 0.000401762,
    "vf_coef": 0.58096,
    "clip_range": 0.1,
    "max_grad_norm": 0.8,
}
STANDARD = {"n_steps": 2_048, "batch_size": 64, "n_epochs": 10, "gamma": 0.99}


def main(options: argparse.Namespace) -> None:
    import torch
    from envpool_sb3 import Pool
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

    torch.set_num_threads(1)  # more are slower with networks this small
    settings = STANDARD
    if options.preset == "zoo":
        network = {
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": torch.nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        }
        settings = ZOO | {"policy_kwargs": network}
    batch_size = options.environments
    settings = settings | {"n_steps": settings["n_steps"] // batch_size}
    monitored = VecMonitor(Pool(ENVIRONMENT, batch_size, options.seed))
    env = VecNormalize(monitored, gamma=settings["gamma"])
    started = time.perf_counter()

    class Record(BaseCallback):
        """Writes a line after each unroll in which episodes finished."""

        def __init__(self):
            super().__init__()
            self.returns, self.tenth = [], 0

        def _on_step(self):
            episodes = (i["episode"] for i in self.locals["infos"] if "episode" in i)
            self.returns += [float(episode["r"]) for episode in episodes]
            return True

        def _on_rollout_end(self):
            if not self.returns:
                return
            line = {
                "steps": self.num_timesteps,
                "mean_return": sum(self.returns) / len(self.returns),
                "episodes": len(self.returns),
                "seconds": round(time.perf_counter() - started, 2),
            }
            self.returns = []
            file.write(json.dumps(line) + "\n")
            file.flush()
            tenth = 10 * line["steps"] // options.steps
            if tenth > self.tenth:
                print(f"{min(tenth, 10):2}/10", line, file=sys.stderr, flush=True)
            self.tenth = tenth

    with open(options.out, "w") as file:
        model = PPO("MlpPolicy", env, seed=options.seed, device="cpu", **settings)
        model.learn(options.steps, callback=Record())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument(
        "--out", required=True, help="a file of JSON lines, overwritten"
    )
    parser.add_argument("--preset", choices=("standard", "zoo"), default="standard")
    parser.add_argument(
        *("--environments", "-n"),
        type=int,
        default=1,
        help="in parallel; the steps of an update are shared among them",
    )
    options = parser.parse_args()
    if sys.prefix != str(environments.FOLDER / "sb3"):
        if not environments.is_available("sb3"):
            sys.exit()
        python = str(environments.python_of("sb3"))
        os.execv(python, [python, *sys.argv])
    main(options)
