"""Networks: one truth for stepping and replaying, memory that ends with its episode."""

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
from podracer.kernels import loops
from podracer.networks import heads
from tests.environments import rows
from tests.jitted import drawn, jitted_network

FIRST, MID, LAST = dm_env.StepType
VARIANTS = {
    "mlp": networks.Config(hidden_sizes=(8,)),
    "separate": networks.Config(hidden_sizes=(8,), separate_value=True),
    "lstm": networks.Config(hidden_sizes=(8,), memory="lstm", memory_size=4),
    "gru, separate": networks.Config(
        hidden_sizes=(8,), memory="gru", memory_size=4, separate_value=True
    ),
    "minatar": networks.Config(torso="minatar"),
    "two layers, last reward": networks.Config(
        hidden_sizes=(8,),
        memory="lstm",
        memory_size=4,
        memory_layers=2,
        last_reward=True,
    ),
}


@functools.cache  # compiled once for all tests
def make(config):
    return jitted_network(plain(config))


def plain(config):
    return networks.actor_critic(
        specs.Array((6, 6, 2), np.float32), specs.DiscreteArray(3), config
    )


def some_timesteps(step_types, shape=(6, 6, 2), batch_size=2):
    step_type = np.array(step_types, np.int32)[:, None].repeat(batch_size, axis=1)
    ones = np.ones(step_type.shape, np.float32)
    observation = normal(*step_type.shape, *shape)
    return dm_env.TimeStep(step_type, ones, ones, observation)


def normal(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def count(spec, **config):
    network = networks.actor_critic(
        spec, specs.DiscreteArray(6), networks.Config(**config)
    )
    params = jax.eval_shape(network.init, jax.random.key(0))
    return sum(x.size for x in jax.tree.leaves(params))


ATARI = specs.Array((84, 84, 4), np.uint8)
ATARI_AND_ACTION = (ATARI, specs.DiscreteArray(6))


def test_parameter_counts_are_torchbeasts():
    planes = specs.Array((10, 10, 4), np.float32)
    assert count(planes, torso="minatar") == 132_695
    shallow = {"torso": "shallow", "last_reward": True, "last_action": True}
    assert count(ATARI_AND_ACTION, **shallow) == 1_687_768
    deep = {"torso": "resnet", "last_reward": True}
    assert count(ATARI, **deep) == 1_091_038
    # PyTorch's LSTM adds two biases where one does: 4 per unit and layer less here.
    lstm = {"memory": "lstm", "memory_size": 519, "memory_layers": 2}
    assert count(ATARI_AND_ACTION, **shallow, **lstm) == 6_005_848 - 2 * 4 * 519
    lstm = {"memory": "lstm", "memory_size": 256}
    assert count(ATARI, **deep, **lstm) == 1_618_391 - 4 * 256


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_replay_equals_acting(config):
    network = make(config)
    params = drawn(network.init)
    timesteps = some_timesteps([MID, LAST, FIRST, MID])
    start = jax.tree.map(lambda x: x + 0.5, network.initial_memory(2))
    memory, steps = start, []
    for t in range(4):
        memory, predictions = network.step(params, memory, rows(timesteps, t))
        steps.append(predictions)
    replayed = network.unroll(params, start, timesteps)
    stacked = jax.tree.map(lambda *x: np.stack(x), *steps)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), replayed, stacked
    )


@pytest.mark.parametrize("name", ["lstm", "gru, separate", "two layers, last reward"])
def test_the_memory_after_some_timesteps_is_that_of_stepping(name):
    network = make(VARIANTS[name])
    params = drawn(network.init)
    timesteps = some_timesteps([MID, LAST, FIRST, MID])
    start = jax.tree.map(lambda x: x + 0.5, network.initial_memory(2))
    memory = start
    for t in range(4):
        memory, _ = network.step(params, memory, rows(timesteps, t))
    result = networks.memory_after(network, params, start, timesteps)
    chex.assert_trees_all_close(result, memory, atol=1e-6)
    nothing = networks.memory_after(network, params, start, rows(timesteps, slice(0)))
    chex.assert_trees_all_equal(nothing, start)


def test_the_memory_after_some_timesteps_is_a_constant():
    network = make(VARIANTS["lstm"])
    timesteps = some_timesteps([MID, MID])

    def total(params, memory):
        memory = networks.memory_after(network, params, memory, timesteps)
        return sum(jnp.sum(x) for x in jax.tree.leaves(memory))

    params, memory = drawn(network.init), network.initial_memory(2)
    for gradient in jax.tree.leaves(jax.jit(jax.grad(total, (0, 1)))(params, memory)):
        np.testing.assert_array_equal(gradient, 0.0)


def test_without_memory_there_is_nothing_to_compute():
    network = make(VARIANTS["mlp"])._replace(step=None)
    memory = network.initial_memory(2)
    assert networks.memory_after(network, None, memory, None) is memory


def test_memory_starts_from_zero_at_first_and_only_there():
    network = make(VARIANTS["lstm"])
    params = drawn(network.init)
    timesteps = some_timesteps([MID, FIRST, MID])
    fresh = network.initial_memory(2)
    other = jax.tree.map(lambda x: x + 1.0, fresh)
    a, b = (
        np.asarray(network.unroll(params, memory, timesteps).value)
        for memory in (fresh, other)
    )
    assert (a[0] != b[0]).all()
    np.testing.assert_array_equal(a[1:], b[1:])


@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize("length", [1, pytest.param(11, marks=pytest.mark.core)])
def test_a_core_computes_on_an_accelerator_what_it_does_on_a_cpu(
    memory, length, monkeypatch
):
    config = networks.Config(hidden_sizes=(8,), memory=memory, memory_size=4)
    network = plain(config)
    params = drawn(network.init)
    timesteps = some_timesteps(([MID, LAST, FIRST, MID] * 3)[:length])

    def loss(params, memory):
        predictions = network.unroll(params, memory, timesteps)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(predictions))

    def on(platform):
        monkeypatch.setattr(
            loops, "by_platform", lambda *x, **known: known[platform](*x)
        )
        memory = jax.tree.map(lambda x: x + 0.5, network.initial_memory(2))
        gradient = jax.value_and_grad(loss, (0, 1))
        traced = jax.jit(gradient).trace(params, memory)
        return str(traced.jaxpr), traced.lower().compile()(params, memory)

    (one, expected), (several, result) = on("cpu"), on("default")
    assert "unroll=8" in several and "unroll=1" not in several
    assert "unroll=8" not in one
    chex.assert_trees_all_close(result, expected, rtol=1e-5, atol=1e-6)


def test_dictionary_observations_are_flattened_together():
    spec = {"a": specs.Array((2,), np.float32), "b": specs.Array((3, 2), np.float32)}
    network = networks.actor_critic(
        spec, specs.DiscreteArray(2), networks.Config(hidden_sizes=(5,))
    )
    params = jax.eval_shape(network.init, jax.random.key(0))
    sizes = sorted(x.shape for x in jax.tree.leaves(params) if x.ndim == 2)
    assert sizes == [(5, 1), (5, 2), (8, 5)]


CHANNELS = (np.float32([-1, -1]), np.float32([1, 1]))


@pytest.mark.parametrize(
    ("spec", "action_shape"),
    [
        (specs.DiscreteArray(4), ()),
        (specs.BoundedArray((3,), np.int32, 0, [1, 4, 2]), (3,)),
        (specs.BoundedArray((2,), np.float32, *CHANNELS), (2,)),
    ],
)
def test_a_policy_for_every_kind_of_action(spec, action_shape):
    network = networks.actor_critic(specs.Array((5,), np.float32), spec)

    @jax.jit
    def act(key):
        params, memory = network.init(key), network.initial_memory(7)
        policy = network.unroll(params, memory, five(7)).policy
        policy = jax.tree.map(lambda x: x[0], policy)
        actions = policy.sample(jax.random.split(key, 7)), policy.mode()
        return [(x, policy.log_prob(x), policy.entropy()) for x in actions]

    for action, log_prob, entropy in act(jax.random.key(0)):
        assert action.shape == (7, *action_shape)
        assert jnp.issubdtype(action.dtype, jnp.integer) == (spec.dtype == np.int32)
        assert log_prob.shape == entropy.shape == (7,)


def five(batch_size):
    """Two timesteps with five random numbers each."""
    zeros = np.zeros((2, batch_size), np.float32)
    observation = normal(2, batch_size, 5)
    return dm_env.TimeStep(zeros.astype(np.int32), zeros, zeros, observation)


@pytest.mark.parametrize("mean", ["linear", "tanh"])
@pytest.mark.parametrize("deviation", ["independent", "dependent"])
@pytest.mark.parametrize("positive", ["exp", "softplus", "bounded"])
def test_deviations_start_where_they_are_told(mean, deviation, positive):
    head = heads.Config(1e-4, mean, deviation, positive, initial_deviation=0.35)
    network = networks.actor_critic(
        specs.Array((5,), np.float32),
        specs.BoundedArray((2,), np.float32, *CHANNELS),
        networks.Config(head=head),
    )

    @jax.jit
    def first_policy(key):
        memory = network.initial_memory(3)
        return network.unroll(network.init(key), memory, five(3)).policy

    policy = first_policy(jax.random.key(0))
    np.testing.assert_allclose(policy.deviation, 0.35, atol=0.02)
    np.testing.assert_allclose(policy.mean, 0.0, atol=0.1)
    differs = np.ptp(policy.deviation, axis=(0, 1)) > 0
    assert differs.all() if deviation == "dependent" else not differs.any()


@pytest.mark.parametrize("positive", ["exp", "softplus", "bounded"])
def test_any_deviation_can_be_the_first(positive):
    bounds = {"min_deviation": 2e-6, "max_deviation": 2e3}
    config = heads.Config(positive=positive, **bounds if positive == "bounded" else {})
    function, inverse = heads.positive_function(config)
    for deviation in (3e-6, 0.35, 1.0, 1e3):
        np.testing.assert_allclose(function(inverse(deviation)), deviation, rtol=1e-5)


@pytest.mark.parametrize("deviation", ["independent", "dependent"])
def test_a_bounded_deviation_stays_within_its_bounds_and_has_a_gradient(deviation):
    config = heads.Config(
        deviation=deviation,
        positive="bounded",
        initial_deviation=0.5,
        min_deviation=0.1,
        max_deviation=2.0,
    )
    network = networks.actor_critic(
        specs.Array((5,), np.float32),
        specs.BoundedArray((2,), np.float32, *CHANNELS),
        networks.Config(head=config),
    )
    params = jax.jit(network.init)(jax.random.key(0))
    memory = network.initial_memory(3)

    @jax.jit
    def deviations(shift):
        shifted = jax.tree.map(lambda x: x + shift, params)
        return network.unroll(shifted, memory, five(3)).policy.deviation

    for shift in (-100.0, 100.0, 0.01):
        assert (deviations(shift) >= 0.0999).all(), shift
        assert (deviations(shift) <= 2.0001).all(), shift
    _, slopes = jax.jvp(deviations, (0.01,), (1.0,))
    assert (slopes > 0).all() if deviation == "independent" else slopes.any()


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"max_deviation": 2.0}, "max_deviation is 2.0, .* no effect on positive exp"),
        ({"positive": "bounded", "initial_deviation": 9.0}, "initial_deviation is 9.0"),
        ({"positive": "bounded", "min_deviation": 0.0}, "min_deviation is 0.0"),
    ],
)
def test_impossible_bounds_are_one_line(fields, line):
    with pytest.raises(UserError, match=line) as error:
        heads.Config(**fields)
    assert "\n" not in str(error.value)


def test_which_parameters_are_the_values():
    """Alone those that the policy does not depend on."""
    for name in ("mlp", "separate", "lstm", "gru, separate"):
        network = make(VARIANTS[name])
        params, memory = drawn(network.init), network.initial_memory(2)
        timesteps = some_timesteps([MID, MID])

        def sums(params, network=network, memory=memory, timesteps=timesteps):
            policy, value = network.unroll(params, memory, timesteps)
            return jnp.sum(jnp.sin(policy.logits)), jnp.sum(value)

        of_policy, of_value = (
            jax.tree.map(lambda x: np.asarray(x).any(), gradients)
            for gradients in jax.jit(jax.jacrev(sums))(params)
        )
        expected = jax.tree.map(lambda p, v: v and not p, of_policy, of_value)
        assert network.is_value(params) == expected, name


def test_batch_ppos_parameter_counts():
    """Spec B5: 21,002 and 21,001 for Pendulum."""
    network = networks.actor_critic(
        specs.Array((3,), np.float32),
        specs.BoundedArray((1,), np.float32, -1, 1),
        networks.Config(hidden_sizes=(200, 100), separate_value=True),
    )
    params = jax.eval_shape(network.init, jax.random.key(0))["params"]
    sizes = {"policy": 0, "value": 0}
    for name, part in params.items():
        sizes[name.split("_")[0]] += sum(x.size for x in jax.tree.leaves(part))
    assert sizes == {"policy": 21_002, "value": 21_001}


@pytest.mark.parametrize(
    "spec",
    [
        specs.Array((1,), np.float32),
        specs.BoundedArray((2, 2), np.float32, -1, 1),
        specs.BoundedArray((0,), np.float32, -1, 1),
        specs.BoundedArray((2,), np.int32, 1, 3),
        specs.BoundedArray((2,), bool, False, True),
    ],
)
def test_actions_that_no_policy_is_for_are_one_line(spec):
    with pytest.raises(UserError, match="action_spec is .*wrap the env") as error:
        networks.actor_critic(specs.Array((2,), np.float32), spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("last_action", [False, True])
def test_nothing_to_observe_is_one_line(last_action):
    spec, action = {"nothing": specs.Array((0,), np.float32)}, specs.DiscreteArray(2)
    config = networks.Config(last_action=last_action)
    with pytest.raises(UserError, match="^observation_spec .*a constant") as error:
        networks.actor_critic((spec, action) if last_action else spec, action, config)
    assert "\n" not in str(error.value)
    spec["something"] = specs.Array((), np.float32)
    networks.actor_critic(spec, action)


def test_squashing_twice_is_refused():
    with pytest.raises(UserError, match="squash"):
        heads.Config(mean="tanh", squash=True)


@pytest.mark.parametrize(
    ("observation", "line"),
    [
        (np.zeros((2, 1), np.float32), r"observation has shape \(1,\), but .* \(3,\)"),
        (np.zeros((2, 3, 1), np.float32), r"observation has shape \(3, 1\), but"),
        (np.zeros((2, 1, 3), np.float32), r"observation has shape \(1, 3\), but"),
        ({"x": np.zeros((2, 3), np.float32)}, "observation has the structure"),
    ],
)
def test_an_observation_unlike_its_spec_is_one_line(observation, line):
    """It would be flattened to the right size, or broadcast, and learned from."""
    network = networks.actor_critic(
        specs.Array((3,), np.float32),
        specs.DiscreteArray(2),
        networks.Config(hidden_sizes=(4,)),
    )
    network = jitted_network(network)
    params, memory = drawn(network.init), network.initial_memory(2)
    zeros = np.zeros(2, np.float32)
    good = dm_env.TimeStep(
        np.zeros(2, np.int32), zeros, zeros + 1.0, np.zeros((2, 3), np.float32)
    )
    network.step(params, memory, good)
    with pytest.raises(UserError, match=line) as error:
        network.step(params, memory, good._replace(observation=observation))
    assert "\n" not in str(error.value)
