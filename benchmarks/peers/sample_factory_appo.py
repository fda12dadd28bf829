"""Sample-factory's asynchronous PPO on EnvPool: steps/s, as one line of JSON.

    python sample_factory_appo.py WORK

WORK is a `work.Work` as JSON. Runs in an environment of its own. Two processes act, each
with a batch of environments, a third predicts and a fourth learns. EnvPool resets finished
environments by itself. A report to the disk every five seconds is sample-factory's least.
"""

import functools
import os
import tempfile
import time

import envpool
import gymnasium
import numpy as np
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from work import Speed, Work, answer

WARM_UP = 4  # updates
ACTORS = 2


class Pool(gymnasium.Env):
    """A batch of an EnvPool environment, as sample-factory wants it."""

    def __init__(self, name: str, batch_size: int, seed: int, threads: int):
        self.pool = envpool.make(
            *(name, "gymnasium"),
            num_envs=batch_size,
            num_threads=threads,
            seed=seed * batch_size,
        )
        seen = self.pool.observation_space
        image = seen.dtype == np.uint8
        self.dtype = np.uint8 if image else np.float32
        low, high = (0, 255) if image else (-np.inf, np.inf)
        self.observation_space = gymnasium.spaces.Box(low, high, seen.shape, self.dtype)
        self.action_space = gymnasium.spaces.Discrete(int(self.pool.action_space.n))
        self.num_agents = batch_size

    def reset(self, **kwargs):
        return self.pool.reset()[0].astype(self.dtype), {}

    def step(self, action):
        action = np.asarray(action, np.int32).reshape(-1)
        observation, reward, terminated, truncated, _ = self.pool.step(action)
        observation, reward = (observation.astype(self.dtype), np.float32(reward))
        return observation, reward, terminated, truncated, {}


def make_pool(name, cfg, env_config, render_mode=None) -> Pool:
    """For each actor; processes find it by its name."""
    number = env_config.worker_index if env_config else 0
    return Pool(name, cfg.env_agents, number, max(1, (os.cpu_count() or 1) // ACTORS))


def measure(work: Work, folder: str) -> Speed:
    register_env(work.environment, make_pool)
    batch = work.batch_size * work.unroll_length
    deep = work.torso == "resnet"
    architecture, features = ("resnet_impala", 256) if deep else ("convnet_atari", 512)
    settings = {
        "env": work.environment,
        "env_agents": work.batch_size,
        "experiment": "speed",
        "train_dir": folder,
        "device": "cpu",
        "batched_sampling": True,
        "num_workers": ACTORS,
        "num_envs_per_worker": 1,
        "worker_num_splits": 1,
        "rollout": work.unroll_length,
        "recurrence": 1,
        "use_rnn": False,
        "num_epochs": work.epochs,
        "num_batches_per_epoch": work.minibatches,
        "batch_size": batch // work.minibatches,
        "normalize_input": False,
        "normalize_returns": False,
        "nonlinearity": "tanh" if work.hidden_sizes else "relu",
        "actor_critic_share_weights": not work.hidden_sizes,
        "encoder_mlp_layers": work.hidden_sizes,
        "encoder_conv_architecture": architecture,
        "encoder_conv_mlp_layers": [features],
        "obs_scale": 1.0 if work.hidden_sizes else 255.0,
        "train_for_env_steps": 10**12,
    }
    arguments = []
    for name, value in settings.items():
        values = value if isinstance(value, list) else [value]
        if values:
            arguments += [f"--{name}", *map(str, values)]
    parser, _ = parse_sf_args(arguments)
    parser.add_argument("--env_agents", type=int)
    _, runner = make_runner(parse_full_cfg(parser, arguments))
    count = work.steps // batch
    times = []

    class Clock(AlgoObserver):
        """The time after each update; ends the run after the last."""

        def on_training_step(self, runner, training_iteration_since_resume):
            times.append(time.perf_counter())
            if len(times) == WARM_UP + count:
                runner.cfg.train_for_env_steps = 0

    runner.register_observer(Clock())
    runner.init()
    runner.run()
    taken = times[WARM_UP + count - 1] - times[WARM_UP - 1]
    return Speed(work.steps / taken, os.cpu_count())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        answer(functools.partial(measure, folder=temporary))
