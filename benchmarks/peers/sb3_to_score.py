"""Stable-baselines3 or sbx trains until a score is reached, for `benchmarks.time_to_score`.

    python sb3_to_score.py SETTINGS

Runs in an environment of its own. SETTINGS is JSON: library, algorithm, env (of gymnasium,
or of EnvPool if envpool is true), environments, score, total_steps, seed, and the algorithm's
arguments. Prints a line of JSON: whether the last 100 episodes had this mean return, and after
how many steps.
"""

import importlib
import json
import sys

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecMonitor

EPISODES = 100  # of which both keep the returns


class StopAt(BaseCallback):
    def __init__(self, score: float):
        super().__init__()
        self.score, self.reached = score, False

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        full = len(returns) >= EPISODES
        self.reached = full and sum(returns) / len(returns) >= self.score
        return not self.reached


def main(settings: dict) -> None:
    torch.set_num_threads(1)  # more are slower with networks this small
    where = settings["env"], settings["environments"], settings["seed"]
    if settings.get("envpool"):
        from envpool_sb3 import Pool  # which takes seconds

        env = VecMonitor(Pool(*where))
    else:
        env = make_vec_env(*where)
    stop = StopAt(settings["score"])
    algorithm = getattr(
        importlib.import_module(settings["library"]), settings["algorithm"]
    )
    model = algorithm(
        "MlpPolicy",
        env,
        seed=settings["seed"],
        device="cpu",
        **settings["arguments"],
    )
    model.learn(settings["total_steps"], callback=stop)
    print(json.dumps({"reached": stop.reached, "steps": model.num_timesteps}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
