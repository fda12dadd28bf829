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


def make_pool(batch_size: int, seed: int):
    """EnvPool's simulators as stable-baselines3 wants them."""
    import envpool
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Pool(VecEnv):
        """A finished environment is reset at once, and its last observation kept apart.

        EnvPool by itself would spend a step on the reset and ignore that step's action.
        """

        render_mode = None

        def __init__(self):
            self.pool = envpool.make(
                *(ENVIRONMENT, "gymnasium"),
                num_envs=batch_size,
                seed=seed * batch_size,  # environment i is seeded with this + i
            )
            seen, acted = self.pool.observation_space, self.pool.action_space
            self.dtype = acted.dtype
            super().__init__(
                batch_size,
                spaces.Box(-np.inf, np.inf, seen.shape, np.float32),
                spaces.Box(-1.0, 1.0, acted.shape, np.float32),
            )

        def reset(self):
            return self.pool.reset()[0].astype(np.float32)

        def step_async(self, actions):
            self.actions = np.asarray(actions, self.dtype)

        def step_wait(self):
            observation, reward, terminated, truncated, _ = self.pool.step(self.actions)
            observation = observation.astype(np.float32)
            over = np.asarray(terminated | truncated)
            infos = [{} for _ in range(batch_size)]
            for i in np.flatnonzero(over):
                infos[i]["terminal_observation"] = observation[i].copy()
                infos[i]["TimeLimit.truncated"] = not terminated[i]
            if over.any():
                first, info = self.pool.reset(np.flatnonzero(over).astype(np.int32))
                observation[info["env_id"]] = first
            return observation, reward.astype(np.float32), over, infos

        def close(self):
            self.pool.close()

        def env_is_wrapped(self, wrapper_class, indices=None):
            return [False for _ in self._get_indices(indices)]

        def get_attr(self, attr_name, indices=None):
            return [getattr(self, attr_name) for _ in self._get_indices(indices)]

        def set_attr(self, attr_name, value, indices=None):
            raise NotImplementedError

        def env_method(self, method_name, *args, indices=None, **kwargs):
            raise NotImplementedError

    return Pool()


def main(options: argparse.Namespace) -> None:
    import torch
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
    monitored = VecMonitor(make_pool(batch_size, options.seed))
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
