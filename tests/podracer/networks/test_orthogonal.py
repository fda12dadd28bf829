"""Orthogonal initial weights: the same under vmap, and no deadlock on few threads."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.linen import initializers

from podracer.networks import torsos

SHAPE = 6, 4


@pytest.mark.core
def test_weights_are_those_of_flax_alone_and_in_a_batch():
    keys = jax.random.split(jax.random.key(0), 3)
    weights = jax.vmap(lambda key: torsos.orthogonal(2.0)(key, SHAPE))(keys)
    for key, ours in zip(keys, weights, strict=True):
        theirs = initializers.orthogonal(2.0)(key, SHAPE)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        np.testing.assert_allclose(ours.T @ ours, 4 * np.eye(4), atol=1e-5)


SCRIPT = """
import jax, numpy as np
from dm_env import specs
from podracer import networks
config = networks.Config(init="orthogonal", memory="lstm", memory_size=64, hidden_sizes=4 * (64,))
network = networks.actor_critic(
    specs.Array((8,), np.float32), specs.DiscreteArray(2), config
)
init = jax.jit(jax.vmap(network.init))
for seed in range(60):
    jax.block_until_ready(init(jax.random.split(jax.random.key(seed), 8)))
print("initialized")
"""


def test_two_threads_initialize_many_networks_at_once():
    flags = "--xla_force_host_platform_device_count=1"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PJRT_NPROC": "2", "XLA_FLAGS": flags},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["initialized"], done.stderr
