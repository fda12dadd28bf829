"""MuZero's model: its shapes, its scaled hidden state, its refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer.errors import UserError
from podracer.networks import world_model

ACTIONS = specs.DiscreteArray(3)
IMAGE = specs.BoundedArray((5, 6, 2), np.uint8, 0, 255)
FRAMES = specs.BoundedArray((40, 40, 1), np.uint8, 0, 255)
VECTOR = specs.Array((4,), np.float32)
TREE = {"index": specs.DiscreteArray(5), "numbers": VECTOR}
SMALL = {"hidden_size": 8, "channels": 4}


@pytest.mark.parametrize(
    "spec, hidden",
    [(VECTOR, (8,)), (TREE, (8,)), (IMAGE, (5, 6, 4)), (FRAMES, (3, 3, 4))],
    ids=["vector", "tree", "board", "frames"],
)
def test_functions_fit_each_other(spec, hidden):
    model = world_model.make_model(spec, ACTIONS, world_model.Config(**SMALL))

    @jax.jit
    def run(key):
        params = model.init(key)
        observation = jax.tree.map(lambda x: jnp.ones((2, *x.shape), x.dtype), spec)
        first = model.representation(params, observation)
        after, reward = model.dynamics(params, first, jnp.array([0, 1]))
        return first, after, reward, *model.prediction(params, after)

    first, after, reward, policy, value = run(jax.random.key(0))
    assert first.shape == after.shape == (2, *hidden)
    assert reward.shape == value.shape == (2, model.support.bins)
    assert policy.shape == (2, 3)
    np.testing.assert_allclose(model.support.mean(value), 0.0, atol=1e-5)
    for state in (first[1:], after[:1], after[1:]):
        np.testing.assert_allclose((state.min(), state.max()), (0, 1), atol=1e-6)
    assert not np.allclose(after[0], after[1])  # the actions differ


@pytest.mark.core
def test_a_constant_hidden_state_scales_to_zero():
    np.testing.assert_array_equal(world_model.scale(jnp.full((1, 3), 7.0)), 0.0)


@pytest.mark.core
def test_convolutions_need_images():
    with pytest.raises(UserError, match="torso is convolution"):
        world_model.make_model(VECTOR, ACTIONS, world_model.Config(torso="convolution"))


@pytest.mark.core
def test_observations_unlike_their_spec_are_refused():
    model = world_model.make_model(VECTOR, ACTIONS, world_model.Config(**SMALL))
    params = jax.eval_shape(model.init, jax.random.key(0))
    with pytest.raises(UserError, match="observation_spec says"):
        jax.eval_shape(model.representation, params, jnp.zeros((2, 5)))


@pytest.mark.core
@pytest.mark.parametrize("field", ["hidden_size", "channels", "depth", "max_return"])
def test_sizes_of_zero_are_refused(field):
    with pytest.raises(UserError, match=field):
        world_model.Config(**{field: 0})
