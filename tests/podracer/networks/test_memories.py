"""Memories: an unroll equals its steps, and an episode sees nothing of the one before it."""

import functools

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import networks
from podracer.errors import UserError
from podracer.networks import memories
from tests.jitted import drawn

FIRST, MID, _ = dm_env.StepType
T = 7
KINDS = {
    "lstm": {},
    "gru": {},
    "lru": {},
    "mingru": {},
    "gtrxl": {"memory_window": 3, "memory_heads": 2},
    "gtrxl, long window": {"memory_window": 9, "memory_heads": 2},
}
CASES = [
    pytest.param(
        name,
        layers,
        marks=[pytest.mark.slow] * (layers == 1 or name == "gtrxl")
        + [pytest.mark.core] * (name not in ("lstm", "gru")),
    )
    for name in KINDS
    for layers in (1, 2)
]


@functools.cache
def make(name, layers=1, **options):
    return networks.actor_critic(
        specs.Array((3,), np.float32),
        specs.DiscreteArray(2),
        networks.Config(
            hidden_sizes=(5,),
            activation="tanh",
            memory=name.split(",")[0],
            memory_size=4,
            memory_layers=layers,
            **KINDS[name],
            **options,
        ),
    )


def timesteps(step_type, seed=0):
    """Random observations for step types [T, B]."""
    zeros = np.zeros(step_type.shape, np.float32)
    random = np.random.default_rng(seed)
    observation = random.normal(size=(*step_type.shape, 3)).astype(np.float32)
    return dm_env.TimeStep(np.int32(step_type), zeros, zeros, observation)


def every_position():
    """[T, T + 2]: FIRST at row b in element b, nowhere, and at two rows."""
    step_type = np.full((T, T + 2), int(MID))
    step_type[np.arange(T), np.arange(T)] = FIRST
    step_type[[1, 4], T + 1] = FIRST
    return timesteps(step_type)


def steps(network, params, memory, timesteps):
    """(the memory after, the predictions [T, B]) of one step after another."""
    return jax.lax.scan(
        lambda memory, row: network.step(params, memory, row), memory, timesteps
    )


def remembered(network, batch_size):
    """Any memory [B, ...] of the present episode, its windows filled from 0 rows on."""
    random = np.random.default_rng(2)

    def fill(x):
        if x.dtype == np.int32:  # rows of a window that are filled; more: all
            return np.int32(np.arange(batch_size))
        return np.float32(random.normal(size=x.shape))

    return jax.tree.map(
        fill, jax.eval_shape(lambda: network.initial_memory(batch_size))
    )


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_an_unroll_and_its_gradients_are_those_of_its_steps(name, layers):
    network, unroll = make(name, layers), every_position()
    params, memory = drawn(network.init), remembered(network, T + 2)

    def results(predict, params):
        predictions = predict(network, params, memory, unroll)
        return jnp.sum(jnp.sin(predictions.value)), predictions

    def at_once(network, *args):
        return network.unroll(*args)

    @jax.jit
    def both(params):
        def of(predict):
            gradient = jax.value_and_grad(
                functools.partial(results, predict), has_aux=True
            )
            return gradient(params)

        return of(at_once), of(lambda *args: steps(*args)[1])

    result, expected = both(params)
    chex.assert_trees_all_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_nothing_before_first_has_an_influence_on_what_is_after_it(name):
    network = make(name, 2)
    params = drawn(network.init)
    step_type = np.full((T, 1), int(MID))
    step_type[3] = FIRST
    unroll = timesteps(step_type)

    @jax.jit
    def after(memory, earlier):
        """Of row 3 on, by the observations before it."""
        observation = jnp.concatenate([earlier, unroll.observation[3:]])
        seen = unroll._replace(observation=observation)

        def total(memory, observation):
            predictions = network.unroll(
                params, memory, seen._replace(observation=observation)
            )
            return jnp.sum(jnp.sin(predictions.value[3:])), predictions.value[3:]

        floats = [
            jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(memory)
        ]
        leaves, structure = jax.tree.flatten(memory)

        def of_floats(floating, observation):
            floating = iter(floating)
            both = [
                next(floating) if f else x for f, x in zip(floats, leaves, strict=True)
            ]
            return total(structure.unflatten(both), observation)

        floating = [x for f, x in zip(floats, leaves, strict=True) if f]
        (gradients, slope), value = jax.grad(of_floats, (0, 1), has_aux=True)(
            floating, observation
        )
        return value, gradients, slope[:3], steps(network, params, memory, seen)[1]

    one = after(network.initial_memory(1), unroll.observation[:3])
    memory = jax.tree.map(lambda x: x[-1:], remembered(network, T + 2))
    other = after(memory, unroll.observation[:3] + 1.0)
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[3].value[3:], other[3].value[3:])
    assert (one[3].value[:3] != other[3].value[:3]).all()
    for gradient in jax.tree.leaves((one[1:3], other[1:3])):
        np.testing.assert_array_equal(gradient, 0.0)


def test_a_window_is_as_long_as_it_says():
    """A row sees `memory_window` rows, itself included."""
    network = make("gtrxl")  # of 3 rows
    params, memory = drawn(network.init), network.initial_memory(1)
    unroll = timesteps(np.full((T, 1), int(MID)))

    @jax.jit
    def slopes(observation):
        def last(observation):
            seen = unroll._replace(observation=observation)
            return network.unroll(params, memory, seen).value[-1, 0]

        return jax.grad(last)(observation)

    seen = np.asarray(slopes(unroll.observation)).any((1, 2))
    np.testing.assert_array_equal(seen, [False] * 4 + [True] * 3)


def test_a_row_is_moved_by_its_number():
    x = np.arange(1.0, 7.0).reshape(1, 3, 2)
    expected = [[1, 2, 0, 0], [0, 3, 4, 0], [0, 0, 5, 6]]
    np.testing.assert_array_equal(memories.sheared(jnp.asarray(x))[0], expected)


def test_a_linear_recurrent_unit_is_stable_and_starts_in_its_ring():
    unit = memories.LRU(64)
    features, first = jnp.zeros((1, 1, 2)), jnp.zeros((1, 1), bool)
    params = unit.init(jax.random.key(0), unit.initial(1), features, first)["params"]
    radius = np.exp(-np.exp(params["nu"]))
    assert (radius >= 0.9).all() and (radius <= 0.999).all() and np.ptp(radius) > 0.05
    np.testing.assert_allclose(np.exp(params["scale"]) ** 2, 1 - radius**2, rtol=1e-3)
    assert all(np.issubdtype(x.dtype, np.floating) for x in jax.tree.leaves(params))


def test_a_minimal_gru_remembers_for_up_to_so_many_steps_at_the_start():
    bias = memories.MinGRU(64, most_steps=32).draw_bias(jax.random.key(0), (64,), None)
    time = 1 + np.exp(-np.asarray(bias))  # 1 / z
    assert (time >= 2).all() and (time <= 32.01).all() and np.ptp(time) > 20


@pytest.mark.parametrize("name", ["lru", "gtrxl"])
def test_a_torso_may_compute_in_bfloat16(name):
    network = make(name, precision="bfloat16")
    memory = network.initial_memory(T + 2)
    params = jax.eval_shape(network.init, jax.random.key(0))
    result = jax.eval_shape(network.unroll, params, memory, every_position())
    assert result.value.dtype == jnp.float32


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"memory_window": 0}, "memory_window is 0; it must be at least 1"),
        ({"memory_heads": 3}, r"memory_heads is 3, .* memory_size \(128\): choose a"),
        ({"memory": "lru", "memory_window": 9}, "memory_window is 9, .*on memory lru"),
        ({"memory": "none", "memory_heads": 2}, "memory_heads is 2, .*on memory none"),
    ],
)
def test_what_a_transformer_cannot_have_is_one_line(fields, line):
    with pytest.raises(UserError, match=line) as error:
        networks.Config(**{"memory": "gtrxl"} | fields)
    assert "\n" not in str(error.value)
