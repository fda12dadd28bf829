"""Torsos: sizes to the letter of their papers, any observation, bytes as images."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import networks
from podracer.errors import UserError
from podracer.networks import modules, torsos
from podracer.transformations.examples import zero_timestep
from tests.jitted import drawn

MINATAR, A3C, SHALLOW = (
    torsos.CONVOLUTIONS[name]() for name in ("minatar", "a3c", "shallow")
)


def count(torso, observation):
    params = jax.eval_shape(torso.init, jax.random.key(0), observation)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def count_of_heads(features, num_actions=6):
    return (features + 1) * (num_actions + 1)


@pytest.mark.parametrize(
    "torso, shape, inputs_of_heads, total",
    [
        (MINATAR, (10, 10, 4), 128, 132_695),
        (SHALLOW, (84, 84, 4), 512 + 1 + 6, 1_687_768),  # + reward, action
        (torsos.ResNet(), (84, 84, 4), 256 + 1, 1_091_038),  # + reward
    ],
)
def test_parameters_are_as_many_as_torchbeasts(torso, shape, inputs_of_heads, total):
    of_heads = count_of_heads(inputs_of_heads)
    assert count(torso, jnp.zeros((1, *shape))) + of_heads == total


def test_a3c_has_the_layers_of_the_first_dqn():
    """arXiv:1312.5602, section 4.1: for it 20 pixels a side are the least."""
    params = jax.eval_shape(A3C.init, jax.random.key(0), jnp.zeros((1, 84, 84, 4)))
    kernels = {layer["kernel"].shape for layer in params["params"].values()}
    assert kernels == {(8, 8, 4, 16), (4, 4, 16, 32), (9 * 9 * 32, 256)}
    config = networks.Config("a3c")
    network = networks.actor_critic(
        specs.Array((20, 20, 1), np.uint8), specs.DiscreteArray(2), config
    )
    assert jax.eval_shape(network.init, jax.random.key(0))
    with pytest.raises(UserError, match="at least 20 pixels a side"):
        networks.actor_critic(
            specs.Array((19, 20, 1), np.uint8), specs.DiscreteArray(2), config
        )


def test_width_and_depth():
    image = jnp.zeros((1, 84, 84, 4))
    features = 11 * 11 * 32 * 256 + 256

    def convolutions(width=1, depth=1):
        sizes = [4, 16 * width, 32 * width, 32 * width]
        return sum(
            (9 * before + 1) * after + 4 * depth * (9 * after + 1) * after
            for before, after in itertools.pairwise(sizes)
        )

    assert count(torsos.ResNet(), image) == convolutions() + features
    assert count(torsos.ResNet(depth=3), image) == convolutions(depth=3) + features
    wide = features + 11 * 11 * 32 * 256
    assert count(torsos.ResNet(width=2), image) == convolutions(width=2) + wide


def test_weights_start_as_pytorchs_do_and_biases_at_zero():
    params = jax.jit(SHALLOW.init)(jax.random.key(0), jnp.zeros((1, 84, 84, 4)))
    for layer in params["params"].values():
        bound = np.prod(layer["kernel"].shape[:-1]) ** -0.5
        largest = np.abs(np.asarray(layer["kernel"])).max()
        assert 0.99 * bound < largest <= bound
        assert not np.asarray(layer["bias"]).any()


@pytest.mark.parametrize(
    ("torso", "side"),
    [("mlp", 10), ("minatar", 10), ("a3c", 40), ("shallow", 40), ("resnet", 40)],
)
def test_each_torso_starts_with_the_weights_that_its_configuration_names(torso, side):
    torso = modules.make_torso(networks.Config(init="orthogonal"), torso)
    params = jax.jit(torso.init)(jax.random.key(0), jnp.zeros((1, side, side, 4)))
    for layer in params["params"].values():
        kernel = np.asarray(layer["kernel"]).reshape(-1, layer["kernel"].shape[-1])
        if kernel.shape[0] >= kernel.shape[1]:
            product = kernel.T @ kernel
            np.testing.assert_allclose(product, 2 * np.eye(len(product)), atol=1e-5)


@pytest.mark.parametrize("torso", [A3C, SHALLOW, torsos.ResNet()])
def test_bytes_are_scaled_images(torso):
    image = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 4), np.uint8)
    params, apply = drawn(torso.init, image), jax.jit(torso.apply)
    features = apply(params, image)
    assert features.dtype == jnp.float32
    np.testing.assert_allclose(
        features, apply(params, np.float32(image) / 255), atol=1e-6
    )


def test_an_mlp_sees_every_leaf():
    torso = torsos.MLP((5,))
    observation = {"image": np.ones((3, 2, 4), np.uint8), "direction": np.ones(3, "f4")}
    params, apply = drawn(torso.init, observation), jax.jit(torso.apply)
    assert params["params"]["Dense_0"]["kernel"].shape == (9, 5)
    assert apply(params, observation).shape == (3, 5)
    for name, leaf in observation.items():
        changed = observation | {name: 2 * leaf}
        assert (apply(params, changed) != apply(params, observation)).any()


def test_one_hot_names_what_the_spec_calls_discrete():
    spec = {"cell": specs.DiscreteArray(3), "speed": specs.Array((2,), np.float32)}
    observation = {"cell": jnp.array([2, 0]), "speed": jnp.ones((2, 2))}
    encoded = torsos.one_hot(observation, spec)
    np.testing.assert_array_equal(encoded["cell"], [[0, 0, 1], [1, 0, 0]])
    assert encoded["speed"] is observation["speed"]


@pytest.mark.parametrize(
    "torso, layer_norm",
    [(x, False) for x in ("mlp", "minatar", "a3c", "shallow", "resnet")]
    + [("minatar", True)],
)
def test_with_bfloat16_values_and_gradients_are_nearly_the_same(torso, layer_norm):
    """The parameters stay float32."""
    image = specs.Array((40, 40, 2), np.uint8)
    pixels = np.random.default_rng(1).integers(0, 256, (4, 40, 40, 2), np.uint8)
    timestep, found = zero_timestep(image, 4)._replace(observation=pixels), {}
    for precision in ("float32", "bfloat16"):
        config = networks.Config(
            torso, layer_norm=layer_norm, last_reward=True, precision=precision
        )
        network = networks.actor_critic(image, specs.DiscreteArray(3), config)

        def value(params, network=network):
            memory = network.initial_memory(4)
            return network.step(params, memory, timestep)[1].value.sum()

        initial = jax.eval_shape(network.init, jax.random.key(0))
        found[precision] = jax.jit(jax.value_and_grad(value))(drawn(network.init))
        assert {x.dtype for x in jax.tree.leaves((initial, found))} == {jnp.dtype("f4")}
    whole, half = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(y)])
        for y in found.values()
    )
    assert 0 < np.linalg.norm(whole - half) < 0.1 * np.linalg.norm(whole)


def test_heads_are_given_float32():
    image = specs.Array((4, 4, 1), np.uint8)
    config = networks.Config("mlp", precision="bfloat16")
    network = networks.with_heads(image, config, lambda features: features)
    params, memory = drawn(network.init), network.initial_memory(2)
    timestep = zero_timestep(image, 2)
    _, features = jax.eval_shape(network.step, params, memory, timestep)
    assert features.dtype == "float32"
