"""PPO: its loss by hand, its first ratio, its epochs, minibatches and shuffles."""

import dataclasses
import functools
import math

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import networks
from podracer.agent import ActorOutput, Trajectory
from podracer.agents import ppo
from podracer.errors import UserError
from podracer.learning import losses
from podracer.networks import Network, Predictions
from podracer.networks.policies import Categorical
from podracer.parallel import AVERAGE
from tests.jitted import jitted, with_drawn

FIRST, MID, LAST = map(int, dm_env.StepType)
ONE = ppo.Config(epochs=1, minibatches=1)
OBSERVATION = specs.Array((3,), np.float32)
ACTIONS = {
    "choices": specs.DiscreteArray(3),
    "numbers": specs.BoundedArray((2,), np.float32, -1, 1),
}


def make(config=ONE, memory="none", actions="choices"):
    return compiled(config, memory, actions)


@functools.cache  # once for all tests
def compiled(config, memory, actions):
    network = networks.Config(hidden_sizes=(8,), memory=memory, memory_size=8)
    network = networks.actor_critic(OBSERVATION, ACTIONS[actions], network)
    agent = jitted(ppo.make_agent(config, with_drawn(network)))
    if config == ONE:
        return agent
    # A configuration is of its learner_step alone: the others are those of ONE.
    one = compiled(ONE, memory, actions)
    return one._replace(learner_step=agent.learner_step)


def acted(agent, state, unroll_length=6, batch_size=8, seed=0):
    """A trajectory that the agent acted in, of noise in which episodes end."""
    random = np.random.default_rng(seed)
    params, actor_state = (
        agent.actor_params(state),
        agent.initial_actor_state(batch_size),
    )
    first, timesteps, outputs = actor_state, [], []
    before = np.full(batch_size, LAST)
    for t in range(unroll_length + 1):
        ends = random.random(batch_size) < 0.3
        step_type = np.where(before == LAST, FIRST, np.where(ends, LAST, MID))
        noise = random.normal(size=(batch_size, 3)).astype(np.float32)
        cut_off = np.arange(batch_size) % 2 == 0
        timestep = dm_env.TimeStep(
            step_type.astype(np.int32),
            np.where(step_type == FIRST, np.float32(0.0), noise[:, 0]),
            np.float32((step_type != LAST) | cut_off),
            noise,
        )
        timesteps.append(timestep)
        if t < unroll_length:
            keys = jax.random.split(jax.random.key(100 * seed + t), batch_size)
            actor_state, output = agent.actor_step(keys, params, actor_state, timestep)
            outputs.append(output)
        before = step_type
    timesteps, outputs = (
        jax.tree.map(lambda *x: np.stack(x), *rows) for rows in (timesteps, outputs)
    )
    return Trajectory(timesteps, outputs, first)


def learned(agent, trajectory=None, key=1):
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory = trajectory or acted(agent, state)
    return agent.learner_step(jax.random.key(key), state, trajectory)


def assert_close(a, b, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_the_first_minibatch_is_on_policy(memory, actions):
    """Its ratio is 1: memories are replayed as they were, and nothing has moved."""
    _, metrics = learned(make(memory=memory, actions=actions))
    assert float(metrics["rho"]) == pytest.approx(1.0, abs=1e-5)
    assert float(metrics["kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(metrics["clipped"]) == 0.0


def test_later_epochs_are_not():
    config = dataclasses.replace(ONE, epochs=4, learning_rate=0.1, clip=1e-3)
    _, metrics = learned(make(config))
    assert float(metrics["kl"]) > 1e-3
    assert float(metrics["clipped"]) > 0.1


def constant_network(logits, value):
    """Predicts its parameters, whatever is seen."""

    def unroll(params, memory, timesteps):
        shape = timesteps.reward.shape
        return Predictions(
            Categorical(jnp.broadcast_to(params["logits"], (*shape, 2))),
            jnp.broadcast_to(params["value"], shape),
        )

    return Network(
        lambda key: {"logits": jnp.float32(logits), "value": jnp.float32(value)},
        lambda batch_size: (),
        lambda params, memory, timestep: (memory, unroll(params, memory, timestep)),
        unroll,
        None,
    )


def batch_of(advantage, target=1.0, value=0.0, mask=1.0):
    """One transition by action 0, which had a probability of a half."""
    one = jnp.ones((1, 1))
    timesteps = dm_env.TimeStep(jnp.full((1, 1), MID), one, one, one)
    return ppo.Batch(
        timesteps,
        jnp.zeros((1, 1), jnp.int32),
        math.log(0.5) * one,
        value * one,
        advantage * one,
        target * one,
        mask * one,
    )


@pytest.mark.parametrize(
    ("advantage", "gain"),
    [
        # pi(0) = 0.8 of logits (log 4, 0), mu(0) = 0.5: rho = 1.6, clipped 1.2
        (2.0, 2.4),
        (-2.0, -3.2),
    ],
)
def test_the_loss_by_hand(advantage, gain):
    network = constant_network((math.log(4), 0.0), 0.5)
    config = ppo.Config(entropy_cost=0.1, value_cost=0.5)
    loss = ppo.make_loss(config, network)
    total, terms = summed(loss)(network.init(None), batch_of(advantage), ())
    entropy = -0.8 * math.log(0.8) - 0.2 * math.log(0.2)
    kl = 0.6 - math.log(1.6)
    assert float(terms["loss/policy"]) == pytest.approx(-gain, abs=1e-5)
    assert float(terms["loss/value"]) == pytest.approx(0.125)
    assert float(terms["rho"]) == pytest.approx(1.6, abs=1e-5)
    assert float(terms["kl"]) == pytest.approx(kl, abs=1e-5)
    assert float(terms["clipped"]) == 1.0
    expected = -gain + 0.5 * 0.125 - 0.1 * entropy
    assert float(total) == pytest.approx(expected, abs=1e-5)


def summed(loss):
    """(the sum of the loss, the means of its terms)."""

    def of(params, batch, memory):
        total, sums = losses.reduced(loss(params, batch, memory))
        return total, losses.means(sums, batch.mask.size, sums.taken)

    return of


def test_a_clipped_value_gains_nothing():
    """0 when acting, 0.5 now, 1 wanted: beyond 0.2 no way is paid."""
    network = constant_network((0.0, 0.0), 0.5)
    loss = summed(ppo.make_loss(ppo.Config(clip_value=0.2), network))
    gradient, terms = jax.jit(jax.grad(loss, has_aux=True))(
        network.init(None), batch_of(1.0), ()
    )
    assert float(terms["loss/value"]) == pytest.approx(0.5 * 0.8**2)
    assert float(gradient["value"]) == 0.0


def test_targets_are_values_and_advantages_of_clipped_rewards():
    config = ppo.Config(
        discount_factor=0.9,
        gae_lambda=0.8,
        reward_clipping="abs_one",
        normalize_advantages="none",
    )
    ones = np.ones((3, 1), np.float32)
    timesteps = dm_env.TimeStep(
        np.full((3, 1), MID), np.float32([[0], [5], [-3]]), ones, ones
    )
    outputs = ActorOutput(np.zeros((2, 1), np.int32), ppo.Extras(-ones[1:], ones[1:]))
    network = constant_network([0.0, 0.0], 0.5)
    params = network.init(None)
    batch = ppo.make_batch(
        config, network, AVERAGE, params, Trajectory(timesteps, outputs, ())
    )
    second = -1.0 + 0.9 * 0.5 - 1.0
    first = 1.0 + 0.9 * 1.0 - 1.0 + 0.9 * 0.8 * second
    np.testing.assert_allclose(batch.advantage, [[first], [second]], rtol=1e-6)
    np.testing.assert_allclose(batch.target, [[first + 1.0], [second + 1.0]], rtol=1e-6)


def test_a_void_transition_teaches_nothing():
    network = constant_network((1.0, 0.0), 0.5)
    loss = summed(ppo.make_loss(ppo.Config(), network))
    gradient, terms = jax.jit(jax.grad(loss, has_aux=True))(
        network.init(None), batch_of(5.0, mask=0.0), ()
    )
    assert not any(x.any() for x in jax.tree.leaves(gradient))
    assert not any(x.any() for x in terms.values())


def test_void_transitions_leave_the_means_over_actions_as_they_are():
    """So that `max_kl` ends the epochs where it should."""
    network = constant_network((1.0, 0.0), 0.5)
    loss = summed(ppo.make_loss(ppo.Config(), network))
    taken, void = batch_of(5.0), batch_of(5.0, mask=0.0)
    both = jax.tree.map(lambda *x: jnp.concatenate(x), taken, void)
    (_, alone), (_, halved) = (
        loss(network.init(None), batch, ()) for batch in (taken, both)
    )
    for name in ("rho", "kl", "clipped"):
        assert halved[name] == pytest.approx(alone[name]) and alone[name] > 0
    assert 2 * halved["loss/policy"] == pytest.approx(alone["loss/policy"])  # per step


@pytest.mark.parametrize("normalize", ["trajectory", "minibatch", "none"])
def test_what_was_decided_at_last_changes_nothing(normalize):
    config = ppo.Config(epochs=2, minibatches=2, normalize_advantages=normalize)
    agent = make(config)
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory = acted(agent, state)
    over = trajectory.timesteps.last()[:-1]
    assert over.any()
    action, extras = trajectory.outputs
    log_mu = np.where(over, np.float32(-9.0), extras.log_mu)
    changed = trajectory._replace(
        outputs=ActorOutput(
            np.where(over, np.int32(2), action), extras._replace(log_mu=log_mu)
        )
    )
    a, b = (learned(agent, x)[0].shared for x in (trajectory, changed))
    assert_close(a.params, b.params, atol=1e-6)
    # while what was decided elsewhere does
    changed = trajectory._replace(outputs=ActorOutput((action + 1) % 3, extras))
    moved = learned(agent, changed)[0].shared
    with pytest.raises(AssertionError):
        assert_close(a.params, moved.params)


def test_whole_unrolls_and_single_transitions_are_the_same_data():
    textbook = dataclasses.replace(ONE, shuffle="transitions")
    a, b = (learned(make(x))[0].shared.params for x in (ONE, textbook))
    assert_close(a, b)


def test_every_part_is_learned_from_once_an_epoch():
    """With a value of its own at every environment, each must move the same."""
    for shuffle in ("unrolls", "transitions"):
        config = ppo.Config(
            epochs=3, minibatches=4, shuffle=shuffle, normalize_advantages="none"
        )
        agent = make(config)
        after, _ = learned(agent)
        assert int(after.shared.opt_state[1].count) == 12
        assert int(after.shared.updates) == 1


def test_shuffles_differ_by_key_and_agree_by_key():
    agent = make(ppo.Config(epochs=1, minibatches=4, learning_rate=0.01))
    one, again, other = (learned(agent, key=key)[0].shared.params for key in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    with pytest.raises(AssertionError):
        assert_close(one, other)


def test_an_update_ends_early_by_its_divergence():
    config = ppo.Config(epochs=4, minibatches=1, learning_rate=0.1, max_kl=1e-9)
    after, metrics = learned(make(config))
    # the first epoch is on-policy: only the second's divergence can be too great
    assert float(metrics["epochs"]) == 2.0
    expected, _ = learned(make(dataclasses.replace(config, epochs=2, max_kl=math.inf)))
    # Two programs, which round as they like; an epoch more or less moves by 0.1.
    assert_close(after.shared.params, expected.shared.params, atol=1e-6)


def test_normalised_advantages_do_not_see_the_scale_of_rewards():
    for normalize, same in (("trajectory", True), ("minibatch", True), ("none", False)):
        config = ppo.Config(
            epochs=1,
            minibatches=2,
            normalize_advantages=normalize,
            gae_lambda=1.0,
            value_cost=0.0,
            max_gradient_norm=1e9,
        )
        agent = make(config)
        state = agent.initial_learner_state(jax.random.key(0))
        trajectory = acted(agent, state)
        zero = trajectory.outputs.extras._replace(
            value=np.zeros_like(trajectory.outputs.extras.value)
        )
        outputs = trajectory.outputs._replace(extras=zero)
        timesteps = trajectory.timesteps
        timesteps = timesteps._replace(discount=0 * timesteps.discount)
        norms = []
        for scale in (1.0, 100.0):
            scaled = timesteps._replace(reward=np.float32(scale) * timesteps.reward)
            scaled = trajectory._replace(timesteps=scaled, outputs=outputs)
            _, metrics = learned(agent, scaled)
            norms.append(float(metrics["gradient_norm"]))
        assert (norms[1] == pytest.approx(norms[0], rel=1e-2)) == same


def test_the_step_size_falls_with_the_steps():
    agent = make(dataclasses.replace(ONE, total_steps=96, learning_rate=1.0))
    state = agent.initial_learner_state(jax.random.key(0))
    got = []
    for seed in range(3):
        trajectory = acted(agent, state, seed=seed)
        state, metrics = agent.learner_step(jax.random.key(2), state, trajectory)
        got.append(float(metrics["learning_rate"]))
    assert got == [1.0, 0.5, 0.0]


def test_minibatches_that_do_not_divide_are_one_line():
    for shuffle, columns in (("unrolls", 8), ("transitions", 48)):
        agent = make(ppo.Config(minibatches=5, shuffle=shuffle))
        with pytest.raises(UserError, match=f"minibatches is 5.*{columns}") as error:
            learned(agent)
        assert "\n" not in str(error.value)


def test_a_memory_is_not_shuffled_apart():
    with pytest.raises(UserError, match="shuffle is transitions.*memory"):
        make(ppo.Config(shuffle="transitions"), memory="gru")


@pytest.mark.parametrize(
    ("field", "value"),
    [("clip", -0.1), ("gae_lambda", 1.5), ("epochs", 0), ("learning_rate", math.nan)],
)
def test_impossible_numbers_are_one_line(field, value):
    with pytest.raises(UserError, match=f"{field} is {value}"):
        ppo.Config(**{field: value})


def test_the_preset_for_atari_is_the_papers():
    preset = ppo.PRESETS["atari"]
    assert (preset.unroll_length, preset.batch_size) == (128, 8)
    assert (preset.config.epochs, preset.config.minibatches) == (3, 4)  # table 5
