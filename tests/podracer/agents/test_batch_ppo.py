"""BatchPPO against the numbers of its specification; padding; chunks; presets."""

import dataclasses
import functools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import command, networks
from podracer.agent import ActorOutput, LearnerState, Trajectory
from podracer.agents import batch_ppo
from podracer.agents.batch_ppo import Config, upgraded
from podracer.agents.batch_ppo import loss as batch_ppo_loss
from podracer.errors import UserError
from podracer.learning import losses, whole_episodes
from podracer.networks import heads
from podracer.networks.policies import Gaussian, TanhGaussian
from podracer.parallel import AVERAGE
from tests.jitted import jitted, with_drawn

FIRST, MID, LAST = map(int, dm_env.StepType)


def column(*rows):
    return np.array(rows, np.float32).T


# Spec F3: rewards and values of two episodes, of 3 and 4 steps; 9 and 7 are padding.
LENGTHS = (3, 4)
REWARD = column([0, 1, 2, 3, 9], [0, 1, 1, 1, 1])  # that timesteps came with
VALUE = column([0.5, 0.5, 0.5, 7, 0], [0.1, 0.2, 0.3, 0.4, 0])


def f3_timesteps():
    row = np.arange(5)[:, None]
    ended = row >= np.array(LENGTHS)[None]
    step_type = np.where(ended, LAST, np.where(row == 0, FIRST, MID))
    zeros = np.zeros((5, 2), np.float32)
    timesteps = dm_env.TimeStep(step_type, REWARD, zeros + 1.0, zeros)
    return jax.tree.map(jnp.asarray, timesteps)


def estimate(**config):
    config = Config(discount_factor=0.9, max_episode_length=4, **config)
    return batch_ppo_loss.estimate(config, f3_timesteps(), VALUE)


def test_returns():
    target, _, mask = estimate()
    close(target.T, [[5.23, 4.7, 3, 0], [3.439, 2.71, 1.9, 1]])
    close(mask.T, [[1, 1, 1, 0], [1, 1, 1, 1]])


def test_advantages_and_their_two_normalisations():
    _, advantage, mask = estimate()
    close(advantage.T, [[4.73, 4.2, 2.5, -7], [3.339, 2.51, 1.6, 0.6]])
    upstream = losses.standardize(advantage, jnp.ones_like(mask), AVERAGE)
    close(upstream[:, 0], [0.91434493, 0.7614794, 0.27115603, -2.46888633])
    corrected = losses.standardize(advantage, mask, AVERAGE)
    close(corrected[:, 0], [1.46146373, 1.06369171, -0.21218082, 0])


def test_generalised_advantages_with_and_without_the_quirk():
    _, upstream, _ = estimate(gae_lambda=0.8)
    close(upstream[:, 0], [6.91592, 8.286, 8.8, 0])
    _, corrected, _ = estimate(gae_lambda=0.8, padding_in_bootstrap=False)
    close(corrected[:, 0], [3.65, 3.75, 2.5, 0])
    for advantage in (upstream, corrected):
        close(advantage[:, 1], [2.6238528, 2.14424, 1.492, 0.6])


def test_a_time_limit_is_the_end_unless_told_otherwise():
    timesteps = f3_timesteps()
    config = Config(discount_factor=0.9, max_episode_length=4)
    config = dataclasses.replace(config, bootstrap_on_truncation=True)
    target, _, _ = batch_ppo_loss.estimate(config, timesteps, VALUE)
    close(target[2, 0], 3 + 0.9 * 7)
    terminated = timesteps._replace(discount=jnp.where(timesteps.last(), 0.0, 1.0))
    target, _, _ = batch_ppo_loss.estimate(config, terminated, VALUE)
    close(target[2, 0], 3)


@pytest.mark.parametrize("padding_in_bootstrap", [True, False])
def test_bootstrapping_a_truncation_is_not_undone_by_the_padding(padding_in_bootstrap):
    """An episode of one transition: reward 1, value 1, and V(LAST) = -10 beyond it."""
    config = Config(
        discount_factor=0.9,
        max_episode_length=2,
        gae_lambda=0.95,
        bootstrap_on_truncation=True,
        padding_in_bootstrap=padding_in_bootstrap,
    )
    step_type = jnp.array([[FIRST], [LAST], [LAST]])
    reward, values = column([0, 1, 0]), column([1, -10, -10])
    for discount, expected in ((0.0, 0.0), (1.0, -9.0)):
        timesteps = dm_env.TimeStep(
            step_type, reward, column([1, discount, discount]), jnp.zeros((3, 1))
        )
        _, advantage, _ = batch_ppo_loss.estimate(config, timesteps, values)
        close(advantage[:, 0], [expected, 0.0])


def test_an_episode_cut_off_at_the_full_length_is_bootstrapped():
    config = Config(
        discount_factor=0.9,
        max_episode_length=1,
        gae_lambda=0.95,
        bootstrap_on_truncation=True,
    )
    timesteps = dm_env.TimeStep(
        jnp.array([[FIRST], [LAST]]), column([0, 1]), column([1, 1]), jnp.zeros((2, 1))
    )
    _, advantage, _ = batch_ppo_loss.estimate(config, timesteps, column([1, -10]))
    close(advantage, [[-9.0]])


def test_returns_may_stop_at_the_end_of_a_chunk_as_the_originals_do():
    """Spec B4: only the value's targets do, in chunks of 2 here; advantages stay whole."""
    cut, advantage, _ = estimate(chunk_length=2, truncate_chunk_returns=True)
    close(cut.T, [[1 + 0.9 * 2, 2, 3, 0], [1.9, 1, 1.9, 1]])
    whole, expected, _ = estimate(chunk_length=2)
    close(advantage, expected)
    close(whole, estimate()[0])
    close(estimate(truncate_chunk_returns=True)[0], whole)  # there are no chunks
    _, expected, _ = estimate(gae_lambda=0.8)
    _, advantage, _ = estimate(
        chunk_length=2, truncate_chunk_returns=True, gae_lambda=0.8
    )
    close(advantage, expected)


def test_a_lost_episode_adds_no_reward_to_the_filter():
    """A restarted environment goes from MID to FIRST: its last action earned nothing."""
    agent = make()
    state = agent.initial_learner_state(jax.random.key(0))
    kinds = [FIRST, MID, FIRST, MID, LAST, FIRST]
    rewards = [0.0, 5.0, 0.0, 7.0, 9.0, 0.0]
    actor_state = agent.initial_actor_state(1)
    params = agent.actor_params(state)
    timesteps, outputs = [], []
    for kind, reward in zip(kinds, rewards, strict=True):
        timestep = dm_env.TimeStep(
            np.int32([kind]),
            np.float32([reward]),
            np.ones(1, np.float32),
            np.ones((1, 3), np.float32),
        )
        timesteps.append(timestep)
        keys = jax.random.split(jax.random.key(1), 1)
        outputs.append(agent.actor_step(keys, params, actor_state, timestep)[1])
    trajectory = Trajectory(
        jax.tree.map(lambda *x: np.stack(x), *timesteps),
        jax.tree.map(lambda *x: np.stack(x), *outputs[:-1]),
        actor_state,
    )
    filters = agent.learner_step(jax.random.key(0), state, trajectory)[0].shared.filters
    assert float(filters.reward.count) == 3
    close(filters.reward.mean, 7.0)
    assert float(filters.observation.count) == 4


def test_the_penalty_follows_the_divergence():
    config = Config()
    for kl, expected in ((0.0131, 1.5), (0.013, 1), (0.007, 1), (0.0069, 1 / 1.5)):
        got = batch_ppo_loss.adapted(config, jnp.float32(1.0), jnp.float32(kl))
        close(got, expected)
    penalty, got = jnp.float32(1.0), []
    for kl in (0.05, 0.03, 0.02, 0.012, 0.004, 0.003):
        penalty = batch_ppo_loss.adapted(config, penalty, jnp.float32(kl))
        got.append(float(penalty))
    close(got, [1.5, 2.25, 3.375, 3.375, 2.25, 1.5])


def test_the_cutoff():
    kl = jnp.array([0.02, 0.021, 0.03, 0.05, 0.1])
    close(batch_ppo_loss.cutoff(Config(), kl), [0, 0.001, 0.1, 0.9, 6.4])


NETWORK = networks.Config(hidden_sizes=(8,), separate_value=True)
SMALL = Config(episodes_per_update=4, max_episode_length=6, epochs=3)


def network_of(config=NETWORK):
    return networks.actor_critic(
        specs.Array((3,), np.float32),
        specs.BoundedArray((2,), np.float32, -1, 1),
        config,
    )


def make(config=SMALL, network=NETWORK):
    return compiled(config, network)


@functools.cache  # once for all tests
def compiled(config, network):
    return jitted(batch_ppo.make_agent(config, with_drawn(network_of(network))))


def full(agent, lengths=(6, 2, 4, 3), padding=0.0):
    """A learner whose memory is full of episodes, and a trajectory without an end."""
    state = agent.initial_learner_state(jax.random.key(0))
    shape = len(lengths), 7
    number, ends = np.arange(7)[None], np.array(lengths)[:, None]
    random = np.random.default_rng(1)

    def normal(*shape):
        return random.normal(size=shape).astype(np.float32)

    step_type = np.where(number == 0, FIRST, np.where(number == ends, LAST, MID))
    timestep = dm_env.TimeStep(
        step_type.astype(np.int32),
        normal(*shape),
        np.ones(shape, np.float32),
        normal(*shape, 3),
    )
    policy = Gaussian(normal(*shape, 2), 0.5 + np.abs(normal(*shape, 2)))
    rows = whole_episodes.Row(timestep, ActorOutput(normal(*shape, 2), policy))
    past = number > ends  # what other episodes have left there

    def disturb(x):
        past_of_x = past.reshape(*shape, *(1,) * (x.ndim - 2))
        return x + np.float32(padding) * past_of_x if x.dtype == np.float32 else x

    rows = jax.tree.map(disturb, rows)
    memory = whole_episodes.EpisodeBuffer(
        rows, np.int32(lengths), np.int32(len(lengths))
    )
    return LearnerState(state.shared, memory)


def trained(agent, state, key=2):
    """After a trajectory of one environment in which no episode ends."""
    params = agent.actor_params(state)
    actor_state = agent.initial_actor_state(1)
    keys = jax.random.split(jax.random.key(3), 1)
    one = np.ones(1, np.float32)
    zeros = np.zeros((1, 3), np.float32)
    timestep = dm_env.TimeStep(np.int32([FIRST]), 0 * one, one, zeros)
    _, output = agent.actor_step(keys, params, actor_state, timestep)
    after = timestep._replace(step_type=np.int32([MID]))
    timesteps = jax.tree.map(lambda *x: np.stack(x), timestep, after)
    outputs = jax.tree.map(lambda x: np.asarray(x)[None], output)
    trajectory = Trajectory(timesteps, outputs, actor_state)
    return agent.learner_step(jax.random.key(key), state, trajectory)


def test_a_full_memory_is_learned_from_and_cleared():
    agent = make()
    before = full(agent)
    after, metrics = trained(agent, before)
    assert float(metrics["trained"]) == 1.0 and int(after.local.count) == 0
    assert int(after.shared.opt_state[0].count) == SMALL.epochs
    assert all(np.isfinite(x).all() for x in metrics.values())
    moved = jax.tree.map(
        lambda a, b: (np.asarray(a) != np.asarray(b)).any(),
        before.shared.params,
        after.shared.params,
    )
    assert all(jax.tree.leaves(moved))


def test_a_memory_with_space_is_not():
    agent = make()
    before = full(agent)
    before = before._replace(local=before.local._replace(count=np.int32(3)))
    after, metrics = trained(agent, before)
    assert float(metrics["trained"]) == 0.0 and int(after.local.count) == 3
    jax.tree.map(
        np.testing.assert_array_equal, before.shared.params, after.shared.params
    )


@pytest.mark.parametrize(
    "config",
    [
        {"padding_in_advantages": False, "gae_lambda": 0.9},
        {"padding_in_advantages": False, "kl_over_max_length": False},
        {"padding_in_advantages": False, "chunk_length": 3, "chunks_per_step": 2},
        {"padding_in_bootstrap": True, "padding_in_advantages": False},
    ],
)
def test_padding_changes_nothing_that_it_should_not(config):
    agent = make(dataclasses.replace(SMALL, **config))
    a, b = (
        trained(agent, full(agent, padding=padding))[0].shared for padding in (0.0, 3.0)
    )
    for x, y in ((a.params, b.params), (a.kl_penalty, b.kl_penalty)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), x, y)


def test_squashed_actions_have_a_density_at_padding():
    squash = dataclasses.replace(NETWORK, head=heads.Config(squash=True))
    agent = make(network=squash)
    state = full(agent)
    timestep, (action, policy) = state.local.rows
    output = ActorOutput(np.tanh(action), TanhGaussian(*policy))
    rows = whole_episodes.Row(timestep, output)
    state = state._replace(local=state.local._replace(rows=rows))
    _, metrics = trained(agent, state)
    assert all(np.isfinite(x).all() for x in metrics.values())


def test_a_sure_policy_at_padding_does_not_overflow():
    zeros, ones = (
        np.zeros((1, 1), "f4"),
        np.ones((1, 1, 9), "f4"),
    )  # nine numbers an action
    agents = networks.Network(
        *[None] * 3,
        lambda params, *_: networks.Predictions(Gaussian(params, 1e-6 * ones), zeros),
        None,
    )
    batch = batch_ppo_loss.Batch(
        (), 0 * ones, Gaussian(ones, ones), zeros, zeros, zeros
    )
    loss = batch_ppo_loss.make_loss(Config(), agents, jnp.float32(1.0))

    def summed(params):
        return losses.reduced(loss(params, batch, ()))

    for x in jax.tree.leaves(jax.jit(jax.grad(summed, has_aux=True))(0 * ones)):
        assert np.isfinite(x).all()


def test_padding_in_advantages_is_the_originals_quirk():
    agent = make()
    a, b = (
        trained(agent, full(agent, padding=padding))[1]["loss/policy"]
        for padding in (0.0, 3.0)
    )
    assert abs(float(a) - float(b)) > 1e-6


def test_chunks_as_long_as_episodes_are_whole_episodes():
    chunked = dataclasses.replace(SMALL, chunk_length=6, chunks_per_step=4)
    a, b = (trained(make(x), full(make(x)))[0].shared for x in (SMALL, chunked))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), a.params, b.params
    )


@pytest.mark.parametrize(
    ("lengths", "steps"),
    # pieces of 2 with something in them: 3 + 1 + 2 + 2, then 4 x 1, then 4 x 3
    [((6, 2, 4, 3), 2), ((2, 2, 1, 1), 1), ((6, 6, 5, 6), 3)],
)
def test_pieces_of_mere_padding_are_left_out(lengths, steps):
    config = dataclasses.replace(SMALL, chunk_length=2, chunks_per_step=4)
    agent = make(config)
    after, _ = trained(agent, full(agent, lengths))
    assert int(after.shared.opt_state[0].count) == config.epochs * steps


def test_pieces_of_mere_padding_come_last():
    """The update is that of episodes without space for any."""
    padded = dataclasses.replace(
        SMALL,
        padding_in_advantages=False,
        kl_over_max_length=False,
        chunk_length=2,
        chunks_per_step=4,
    )
    exact = dataclasses.replace(padded, max_episode_length=2)
    before = full(make(padded), (2, 2, 1, 1))
    rows = jax.tree.map(lambda x: x[:, :3], before.local.rows)
    without = before._replace(local=before.local._replace(rows=rows))
    a, _ = trained(make(padded), before)
    b, _ = trained(make(exact), without)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5),
        a.shared.params,
        b.shared.params,
    )


def test_a_chunk_starts_without_memory():
    network = network_of(dataclasses.replace(NETWORK, memory="gru", memory_size=4))

    def unroll(params, memory, timesteps):
        remembered = sum(jnp.abs(x).sum() for x in jax.tree.leaves(memory))
        policy, value = network.unroll(params, memory, timesteps)
        return networks.Predictions(policy, jnp.where(remembered > 0, jnp.nan, value))

    config = dataclasses.replace(SMALL, epochs=1, chunk_length=2, chunks_per_step=4)
    agent = jitted(batch_ppo.make_agent(config, network._replace(unroll=unroll)))
    _, metrics = trained(agent, full(agent))
    assert all(np.isfinite(x).all() for x in metrics.values())


def test_fewer_pieces_than_a_step_takes_are_one_step():
    """Short episodes were never learned from."""
    config = dataclasses.replace(SMALL, chunk_length=2, chunks_per_step=5)
    agent = make(config)
    before = full(agent, (2, 2, 1, 1))  # 4 pieces
    after, metrics = trained(agent, before)
    assert int(after.shared.opt_state[0].count) == config.epochs
    assert metrics["gradient_norm"] > 0


def test_policy_and_value_step_at_their_own_sizes():
    one = dataclasses.replace(SMALL, epochs=1, learning_rate=1e-4)
    two = dataclasses.replace(one, value_learning_rate=1e-3)
    none = dataclasses.replace(one, value_learning_rate=0.0)
    for config, factor in ((one, 1), (two, 10), (none, 0)):
        agent = make(config)
        before = full(agent)
        after, _ = trained(agent, before)
        moved = jax.tree.map(
            lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(),
            before.shared.params,
            after.shared.params,
        )["params"]
        # the first step of Adam is its step size, wherever there is a gradient
        assert moved["policy_head"]["Dense_0"]["bias"] == pytest.approx(1e-4, rel=0.01)
        bias = moved["value_head"]["bias"]
        assert bias == pytest.approx(factor * 1e-4, rel=0.01)


def test_a_network_that_cannot_say_which_parameters_are_the_values_is_refused():
    """Only where these have their own learning rate."""
    own_rate = dataclasses.replace(SMALL, value_learning_rate=1e-3)
    silent = network_of()._replace(is_value=None)
    batch_ppo.make_agent(SMALL, silent)
    with pytest.raises(UserError, match="^value_learning_rate is 0.001, but") as error:
        batch_ppo.make_agent(own_rate, silent)
    assert "\n" not in str(error.value)
    of_modules = networks.of_modules("value", "value_head")
    batch_ppo.make_agent(own_rate, silent._replace(is_value=of_modules))


def test_a_value_learning_rate_of_0_in_an_old_configuration_means_none():
    values = dataclasses.asdict(dataclasses.replace(SMALL, value_learning_rate=0.0))
    assert command.filled(Config(), upgraded(values)).value_learning_rate == 0.0
    del values["truncate_chunk_returns"]  # as before 0 meant 0
    assert command.filled(Config(), upgraded(values)).value_learning_rate is None
    values["value_learning_rate"] = 1e-3
    assert command.filled(Config(), upgraded(values)).value_learning_rate == 1e-3


@pytest.mark.parametrize(
    "memory", ["gru", pytest.param("lstm", marks=pytest.mark.slow)]
)
def test_a_memory_starts_anew_with_each_episode(memory):
    network = dataclasses.replace(NETWORK, memory=memory, memory_size=4)
    agent = make(network=network)
    _, metrics = trained(agent, full(agent))
    assert all(np.isfinite(x).all() for x in metrics.values())


def test_presets_take_the_steps_that_they_should():
    preset = batch_ppo.PRESETS["latest-pendulum"].config
    pieces = preset.episodes_per_update * (200 // preset.chunk_length)
    steps = pieces // preset.chunks_per_step * preset.epochs
    assert steps == 150  # spec B4
    names = "paper", "v1", "latest"
    paper, v1, latest = (batch_ppo.PRESETS[name] for name in names)
    rates = [
        (x.config.learning_rate, x.config.value_learning_rate)
        for x in (paper, v1, latest)
    ]
    assert rates == [(1e-4, 1e-3), (1e-4, 3e-4), (1e-4, None)]
    assert [x.config.epochs for x in (paper, v1, latest)] == [25, 50, 25]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"chunk_length": 4}, "chunk_length is 4.*max_episode_length 6"),
        ({"epochs": 0}, "epochs is 0"),
        ({"kl_target": -1.0}, "kl_target is -1"),
        ({"gae_lambda": 2.0}, "gae_lambda is 2"),
    ],
)
def test_impossible_numbers_are_one_line(config, line):
    with pytest.raises(UserError, match=line):
        dataclasses.replace(SMALL, **config)


def test_too_few_pieces_for_a_step_are_one_line():
    config = dataclasses.replace(SMALL, chunk_length=3, chunks_per_step=9)
    agent = make(config)
    with pytest.raises(UserError, match=r"chunks_per_step is 9.*8 chunks"):
        trained(agent, full(agent))


def close(got, expected):
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-5)
