"""Servers and clients of remote environments in this process, and environments for them."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import dm_env
import numpy as np
from dm_env import specs

from sebulba import host_environments
from sebulba.host_environments.remote import serving
from tests.environments import HostCounter

FIRST, MID, LAST = map(int, dm_env.StepType)
CERTIFICATE = Path(__file__).parent / "certificate" / "localhost.pem"
KEY = CERTIFICATE.with_name("localhost-key.pem")
KILL = 400  # seconds after which a process of ours is killed


def serve(make=lambda seed: HostCounter(1), **config):
    return serving.serving(make, serving.Config(port=0, **config))


def client(address, batch_size=1, **options):
    options = {"connect_seconds": 2.0, "reconnect_seconds": 30.0} | options
    kind = type(host_environments.default_options(address))
    return host_environments.make(address, batch_size, 0, 1, kind(**options))


def start_server(*flags):
    """A server in a process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sebulba", "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    timer = threading.Timer(KILL, process.kill)
    timer.daemon = True  # or the tests would not end before
    timer.start()
    line = process.stdout.readline()
    assert " is at grpc://127.0.0.1:" in line, line
    return process, line.split()[-1]


class Rich(HostCounter):
    """Observations in a tree, continuous actions, and a discount that tells truncation."""

    def __init__(self, truncates):
        super().__init__(1, length=3)
        self._truncates = truncates

    def step(self, action):
        self.actions = [*getattr(self, "actions", []), action[0].tolist()]
        timestep = super().step(action[:, 0])
        over = timestep.step_type == LAST
        return timestep._replace(
            discount=np.where(over & (not self._truncates), 0, 1).astype(np.float32)
        )

    def _timestep(self, step_type):
        plain = super()._timestep(step_type)
        image = np.full((1, 4, 4), self._count[0], np.uint8)
        seen = {"flags": np.array([[True, False]]), "parts": (plain.observation, image)}
        return plain._replace(observation=seen)

    def observation_spec(self):
        image = specs.BoundedArray((4, 4), np.uint8, 0, 255)
        flags = specs.BoundedArray((2,), bool, False, True)
        return {"flags": flags, "parts": (super().observation_spec(), image)}

    def action_spec(self):
        return specs.BoundedArray((2,), np.float32, -1.0, [1.0, 2.0])


class Slow(HostCounter):
    """One environment that takes its time."""

    def __init__(self, seconds):
        super().__init__(1)
        self._seconds = seconds

    def step(self, action):
        time.sleep(self._seconds)
        return super().step(action)
