"""The network of Disco103: its size, its initial weights, what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer.errors import UserError
from podracer.networks import heads
from podracer.networks.action_model import Config, action_model
from podracer.transformations.examples import zero_timestep

ACTIONS = specs.DiscreteArray(3)
SMALL = Config(hidden_sizes=(), embedding_size=8, model_size=4, head_size=4)


def spec(*shape):
    return specs.Array(shape, np.float32)


def test_the_network_of_the_reference_for_catch():
    """943,375 parameters, and its initial weights."""
    network = action_model(spec(8, 8), ACTIONS)
    params = jax.jit(network.init)(jax.random.key(0))["params"]
    assert sum(x.size for x in jax.tree.leaves(params)) == 943_375
    for layer, inputs in (
        (params["shared"]["MLP_0"]["Dense_0"], 64),
        (params["embedding"], 512),
        (params["model"]["root"], 512),
        (params["model"], 131),
        (params["q_head"], 128),
    ):
        kernel = np.asarray(layer["kernel"]) * np.sqrt(inputs)
        assert 1.9 < np.abs(kernel).max() <= 2.0
        np.testing.assert_allclose(kernel.std(), 0.88, atol=0.02)
        np.testing.assert_array_equal(layer["bias"], 0.0)
    for name in "policy_head", "y_head":
        kernel = np.asarray(params[name]["kernel"])
        assert 0.018 < np.abs(kernel).max() <= 0.02
        np.testing.assert_allclose(kernel.std(), 0.0088, atol=5e-4)


@pytest.mark.core
def test_memory_of_predictions_at_18_actions():
    network = action_model(spec(4), specs.DiscreteArray(18), SMALL)
    params = jax.eval_shape(network.init, jax.random.key(0))
    timesteps = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (29, *x.shape)), zero_timestep(spec(4), 64)
    )
    predictions = jax.eval_shape(network.unroll, params, ((),), timesteps)
    size = sum(4 * x.size for x in jax.tree.leaves(predictions))
    each = 18 + 600 + 18 * (600 + 601 + 18)  # policy, y; z, q and next policy by action
    assert size == 29 * 64 * 4 * each
    assert size == pytest.approx(167e6, rel=0.01)


@pytest.mark.core
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"separate_value": True}, "separate_value is true"),
        ({"model_size": 0}, "model_size is 0"),
    ],
)
def test_impossible_networks_are_refused(config, message):
    with pytest.raises(UserError, match=message):
        Config(**config)


@pytest.mark.core
def test_actions_that_are_no_single_choice_are_refused():
    with pytest.raises(UserError, match="Disco103 is for discrete actions, one"):
        action_model(spec(4), specs.BoundedArray((2,), np.float32, -1, 1))


@pytest.mark.core
def test_a_policy_head_that_would_be_ignored_is_refused():
    config = Config(head=heads.Config(init_scale=0.1))
    with pytest.raises(UserError, match=r"head.init_scale is 0.1, .* on Disco103"):
        action_model(spec(4), specs.DiscreteArray(2), config)


def test_each_action_has_its_own_predictions():
    """By hand, for the action at hand: one step of the LSTM from the root."""
    network = action_model(spec(4), ACTIONS, SMALL)
    params = jax.jit(network.init)(jax.random.key(0))
    timestep = zero_timestep(spec(4), 2)
    observation = jnp.arange(8.0).reshape(2, 4)
    _, got = jax.jit(network.step)(
        params, ((),), timestep._replace(observation=observation)
    )

    def dense(layer, x):
        return x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])[None]

    def sigmoid(x):
        return 1.0 / (1.0 + np.exp(-x))

    layers = params["params"]
    features = dense(layers["embedding"], np.asarray(observation))
    np.testing.assert_allclose(
        got.policy.logits, dense(layers["policy_head"], features), atol=1e-5
    )
    cell = dense(layers["model"]["root"], features)
    for action in range(3):
        one_hot = np.broadcast_to(np.eye(3)[action][None], (2, 3))
        x = np.concatenate([one_hot, np.tanh(cell)], axis=1)
        i, g, f, o = np.split(dense(layers["model"], x), 4, axis=1)
        after = sigmoid(f + 1.0) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(after)
        for name, x in (("z", got.z), ("q", got.q), ("next_policy", got.next_policy)):
            middle = np.maximum(dense(layers[f"{name}_hidden"], hidden), 0.0)
            expected = dense(layers[f"{name}_head"], middle)
            np.testing.assert_allclose(x[:, action], expected, atol=1e-5)
