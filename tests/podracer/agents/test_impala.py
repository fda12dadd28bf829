"""IMPALA: its optimizer, schedule and loss against values of TorchBeast's code."""

import dataclasses
import functools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from podracer import networks
from podracer.agent import ActorOutput, Trajectory
from podracer.agents import impala
from podracer.kernels import blocking
from podracer.learning import losses, optimizers
from podracer.networks.policies import Categorical
from tests.jitted import jitted, with_drawn

MID = int(dm_env.StepType.MID)


@pytest.mark.core
def test_rmsprop_is_torchs():
    config = impala.Config(learning_rate=0.01, max_gradient_norm=1e9)
    optimizer = optimizers.rmsprop(config)
    param, state, got = jnp.float32(1.0), optimizer.init(jnp.float32(1.0)), []
    for gradient in (1.0, 0.5, -2.0):
        direction, state = optimizer.update(jnp.float32(gradient), state)
        param = param - config.learning_rate * direction
        got.append(float(param))
    np.testing.assert_allclose(got, [0.909091, 0.867890, 0.951698], atol=1e-5)


@pytest.mark.core
def test_momentum_multiplies_steps_not_gradients():
    config = impala.Config(momentum=0.5)
    optimizer = optimizers.rmsprop(config)
    plain = optimizers.rmsprop(dataclasses.replace(config, momentum=0.0))
    state, plain_state = optimizer.init(jnp.ones(1)), plain.init(jnp.ones(1))
    buffer = 0.0
    for gradient in (1.0, 0.5):
        got, state = optimizer.update(jnp.full(1, gradient), state)
        step, plain_state = plain.update(jnp.full(1, gradient), plain_state)
        buffer = 0.5 * buffer + step
    np.testing.assert_allclose(got, buffer, rtol=1e-6)


MU = [[[0, 0, 0], [1, 0, -1]], [[0.5, -0.5, 0], [0, 2, 0]], [[0.2, 0.1, 0], [-1, 0, 1]]]
PI = [[[1, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 1, 0]], [[0, 0, 0], [-2, 0, 2]]]


def case_two():
    """Spec F1, case 2: an episode of environment 1 ends with the second action."""
    reward = jnp.array([[0.0, 0], [1, 0], [0, 1], [-1, 0.5]])
    discount = jnp.array([[1.0, 1], [1, 1], [1, 0], [1, 1]])
    timesteps = dm_env.TimeStep(
        jnp.full((4, 2), MID), reward, discount, jnp.zeros((4, 2))
    )
    outputs = ActorOutput(
        jnp.array([[0, 0], [2, 1], [1, 2]]), Categorical(jnp.array(MU, jnp.float32))
    )
    logits = jnp.concatenate([jnp.array(PI, jnp.float32), jnp.zeros((1, 2, 3))])
    value = jnp.array([[0.3, 0.1], [0.2, -0.2], [0.4, 0.6], [0.5, -0.3]])
    predictions = networks.Predictions(Categorical(logits), value)
    network = networks.Network(None, None, None, lambda *_: predictions, None)
    return network, (timesteps, outputs)


@pytest.mark.core
@pytest.mark.parametrize(
    ("entropy_cost", "expected"), [(0.01, 0.010176991840), (0.0006, 0.062481087623)]
)
def test_loss_sums_as_torchbeast(entropy_cost, expected):
    config = impala.Config(entropy_cost=entropy_cost)
    network, rows = case_two()
    loss = impala.make_loss(config, network)
    total, (metrics, _, _) = losses.reduced(loss((), rows, ()))
    assert float(total) == pytest.approx(expected, abs=1e-5)
    assert float(metrics["loss/policy"]) == pytest.approx(-0.524772033, abs=1e-5)
    assert float(metrics["loss/value"]) == pytest.approx(1.181183361, abs=1e-5)
    assert float(metrics["loss/entropy"]) == pytest.approx(-5.564265509, abs=1e-5)


@pytest.mark.core
@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("sum", 4.0 * 3.0), ("mean", 3.0 / 6), ("podracer", 3.0)],
)
def test_a_reduction_is_of_the_gradient_of_a_sum(reduction, expected):
    """On four cores, with six transitions on each."""

    class OfFour:
        def __call__(self, x):
            return x

        cores = 4

        def total(self, x):
            return jax.tree.map(lambda leaf: 4.0 * leaf, x)

    config = impala.Config(reduction=reduction)
    reduced = impala.reduced_over_cores(config, 3.0, 2.0, 6, OfFour())
    assert reduced == (expected, 2.0)


def test_presets_are_the_published_ones():
    presets = impala.PRESETS
    torchbeast, table = presets["torchbeast"], presets["impala"]
    assert (torchbeast.unroll_length, torchbeast.batch_size) == (80, 8)
    assert torchbeast.config == impala.Config(
        discount_factor=0.99,
        learning_rate=4.8e-4,
        value_cost=0.5,
        entropy_cost=6e-4,
        max_gradient_norm=40.0,
        rmsprop_decay=0.99,
        rmsprop_epsilon=0.01,
        reward_clipping="abs_one",
        reduction="sum",
    )
    assert (table.unroll_length, table.batch_size) == (20, 32)
    assert (table.config.learning_rate, table.config.entropy_cost) == (6e-4, 0.01)
    assert presets["podracer"].config.reduction == "podracer"


@pytest.mark.parametrize("gradient", (1e-3, 3.0))
def test_the_papers_epsilon_is_inside_the_root(gradient):
    """As in TensorFlow; the steps are alike where one of the two terms is much larger."""

    def last_step(optimizer):
        def step(state, _):
            steps, state = optimizer.update(jnp.float32(gradient), state)
            return state, steps

        return jax.lax.scan(step, optimizer.init(jnp.float32(0.0)), length=2000)[1][-1]

    ours = optimizers.rmsprop(impala.PRESETS["impala"].config)
    tensorflow = optax.scale_by_rms(0.99, eps=0.01, eps_in_sqrt=True, initial_scale=1.0)
    np.testing.assert_allclose(last_step(ours), last_step(tensorflow), rtol=0.05)


def make(memory="none", **config):
    network = networks.actor_critic(
        specs.Array((3,), np.float32),
        specs.DiscreteArray(2),
        networks.Config(hidden_sizes=(8,), memory=memory, memory_size=8),
    )
    return jitted(impala.make_agent(impala.Config(**config), with_drawn(network)))


@functools.cache  # compiled once for all tests
def initial_state(memory):
    """Of a learner; the configuration has no part in it."""
    return make(memory).initial_learner_state(jax.random.key(0))


def some_timestep(key, batch_size=4):
    return dm_env.TimeStep(
        jnp.full(batch_size, MID),
        jnp.zeros(batch_size),
        jnp.ones(batch_size),
        jax.random.normal(key, (batch_size, 3)),
    )


@pytest.mark.core
def test_greedy_takes_the_likeliest_action():
    agent = make()
    params = agent.actor_params(agent.initial_learner_state(jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), 4)
    timestep = some_timestep(jax.random.key(2))
    memory = agent.initial_actor_state(4)
    _, output = agent.greedy_actor_step(keys, params, memory, timestep)
    np.testing.assert_array_equal(output.action, output.extras.mode())
    sampled = {
        tuple(
            np.asarray(
                agent.actor_step(
                    jax.random.split(jax.random.key(seed), 4), params, memory, timestep
                )[1].action
            )
        )
        for seed in range(20)
    }
    assert len(sampled) > 1


def two_sequences(memory):
    """Case two for a network that sees 3 numbers and has 2 actions."""
    _, (timesteps, (action, policy)) = case_two()
    observation = np.float32(np.random.default_rng(1).normal(size=(4, 2, 3)))
    timesteps = timesteps._replace(observation=observation)
    outputs = ActorOutput(action % 2, Categorical(policy.logits[..., :2]))
    return Trajectory(timesteps, outputs, memory)


@pytest.mark.parametrize("reduction", ["sum", "mean", "podracer"])
def test_parts_of_a_batch_make_one_update(monkeypatch, reduction):
    def update():
        agent = make("lstm", reduction=reduction)
        random = np.random.default_rng(3)
        memory = jax.tree.map(
            lambda x: np.float32(random.normal(size=x.shape)),
            agent.initial_actor_state(2),
        )
        state = initial_state("lstm")
        return agent.learner_step(jax.random.key(2), state, two_sequences(memory))

    whole, terms = update()
    monkeypatch.setattr(blocking, "sequences_at_once", lambda *x: 1)
    parts, sums = update()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        (parts.shared, sums),
        (whole.shared, terms),
    )


@pytest.mark.core
def test_an_update_moves_every_parameter_once():
    agent, state = make(memory="lstm"), initial_state("lstm")
    trajectory = two_sequences(agent.initial_actor_state(2))
    after, metrics = agent.learner_step(jax.random.key(2), state, trajectory)
    moved = jax.tree.map(
        lambda a, b: (np.asarray(a) != np.asarray(b)).any(),
        state.shared.params,
        after.shared.params,
    )
    assert all(jax.tree.leaves(moved))
    assert int(after.shared.updates) == 1
    assert all(np.isfinite(float(x)) for x in metrics.values())
    assert -np.log(2) <= metrics["loss/entropy"] < -0.1  # a mean over six transitions
