"""The types that products are computed in."""

import re

import jax
import numpy as np
import pytest
from dm_env import specs

from podracer import networks
from podracer.transformations.examples import zero_timestep

ACTIONS = 32  # so many that the policy's head is one product


@pytest.mark.core
@pytest.mark.parametrize("precision, name", [("float32", "f32"), ("bfloat16", "bf16")])
@pytest.mark.parametrize(
    "torso, layer_norm",
    [(x, False) for x in ("mlp", "minatar", "a3c", "shallow", "resnet")]
    + [("minatar", True)],
)
def test_bfloat16_is_what_the_torso_computes_in_and_nothing_else(
    torso, layer_norm, precision, name
):
    image = specs.Array((40, 40, 2), np.uint8)
    config = networks.Config(
        torso, layer_norm=layer_norm, last_reward=True, precision=precision
    )
    network = networks.actor_critic(image, specs.DiscreteArray(ACTIONS), config)
    params = jax.eval_shape(network.init, jax.random.key(0))
    timestep = zero_timestep(image, 4)
    step = jax.make_jaxpr(network.step)(params, network.initial_memory(4), timestep)
    types = re.findall(r"(\w+)\[[^]]*\] = (?:conv_general|dot_general)", str(step))
    assert types[-2:] == ["f32", "f32"]  # the heads
    assert {*types[:-2]} == {name}
