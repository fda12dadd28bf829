"""Statistics equal numpy's however samples come; agents act and learn by the same ones."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from hypothesis import given, settings
from hypothesis import strategies as st

import anakin
from podracer import networks, parallel, transformations
from podracer.agent import FAILED, ActorOutput, Agent, LearnerState, Trajectory
from podracer.agents import impala
from podracer.errors import UserError
from podracer.transformations import normalizer
from sebulba import cores as sebulba_cores
from sebulba import training as sebulba
from tests.environments import Counter, HostCounter, rows
from tests.jitted import jitted
from tests.rounding import without_lost

FIRST, MID, LAST = dm_env.StepType
PAIR = specs.Array((2,), np.float32)
VECTOR = specs.Array((3,), np.float32)
TREE = {"a": VECTOR, "b": specs.Array((), np.int32)}


@jax.jit
def update(state, batch, mask=None):
    return normalizer.update(state, batch, parallel.AVERAGE, mask)


def close(got, expected, **tolerance):
    tolerance = {"rtol": 1e-5, "atol": 1e-5} | tolerance
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, **tolerance), got, expected)


def copies(tree):
    """On how many cores a SHARED tree is, and how many different bits they have."""
    shards = [x.addressable_shards for x in jax.tree.leaves(tree)]
    bits = [{np.asarray(x.data).tobytes() for x in shard} for shard in shards]
    return [max(map(len, shards)), max(map(len, bits))]


def by_numpy(samples):
    """Of samples [N, ...]."""
    samples = np.asarray(samples, np.float64)
    mean = samples.mean(0)
    squares = np.square(samples - mean).sum(0)
    return normalizer.Normalizer(len(samples), mean, squares, lost=())


# Spec F2: samples, then (count, mean, variance_sum), std, some x, and x normalized.
FIGURES = [
    (
        [[1, 10], [3, 10]],
        (2, [2, 10], [2, 0]),
        [1.41424892, 0.01],
        [[4, 10.2], [100, -100]],
        [[1.4141782, 5], [5, -5]],
    ),
    (
        [[5, 12]],
        (3, [3, 10.6666667], [8, 2.6666667]),
        [2.000025, 1.15474384],
        [[2, 10]],
        [[-0.49999375, -0.57732861]],
    ),
    (
        [[0, 0], [1, 1], [2, 4]],
        (6, [2, 6.1666667], [16, 132.833333]),
        [1.78888233, 5.15429594],
        [[2, 6.1666667]],
        [[0, 0]],
    ),
]


def test_published_observation_filter():
    state = normalizer.initial_state(PAIR)
    for batch, expected, std, x, normalized in FIGURES:
        state = update(state, jnp.array(batch))
        close((state[:3], normalizer.scale(state)), (expected, std))
        close(normalizer.normalize(state, jnp.array(x), clip=5.0), normalized)


def test_published_reward_filter():
    """Spec F2: not centred."""

    def normalize(state, x):
        return normalizer.normalize(state, jnp.array(x), center=False, clip=10.0)

    state = normalizer.initial_state(specs.Array((), np.float32))
    constant = update(update(state, jnp.ones(1)), jnp.ones(2))
    close(normalizer.scale(constant), 0.01)
    assert normalize(constant, 1.0) == 10.0
    rewards = [-1.0, -2.0, -16.0]
    state = update(state, jnp.array(rewards))
    close((state.mean, normalizer.scale(state)), (-6.3333333, 8.38650305))
    close(normalize(state, rewards), [-0.11923921, -0.23847842, -1.90782736])


@given(
    st.lists(st.sampled_from([(1,), (3,), (4, 2), (2, 1, 3)]), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_any_split_equals_numpy(shapes, masked, seed):
    random = np.random.default_rng(seed)
    state, kept = normalizer.initial_state(TREE), {"a": [], "b": []}
    for shape in shapes:
        batch = {
            "a": random.normal(3, 2, (*shape, 3)).astype(np.float32),
            "b": random.integers(-9, 9, shape, np.int32),
        }
        mask = random.random(shape) < 0.6 if masked else np.ones(shape, bool)
        state = update(state, batch, mask.astype(np.float32) if masked else None)
        for name, x in batch.items():
            kept[name].append(x[mask])
    count, mean, variance_sum, _ = state
    assert count == sum(len(x) for x in kept["b"])
    for name in kept if count else ():
        expected = by_numpy(np.concatenate(kept[name]))
        close((mean[name], variance_sum[name]), expected[1:3], rtol=1e-4)


@pytest.mark.core
def test_every_core_has_the_same_bits_and_one_cores_numbers():
    data = np.random.default_rng(0).normal(3, 2, (2, 5, 16, 2)).astype(np.float32)
    masks = np.random.default_rng(1).random((2, 5, 16)) < 0.7

    def two_updates(data, masks):
        state = normalizer.initial_state(PAIR)
        for i in range(2):
            state = normalizer.update(state, data[i], parallel.AVERAGE, masks[i])
        return state

    expected = by_numpy(data[masks])
    for cores in (1, 2, 4, 8):
        mapped = parallel.over_cores(
            lambda one, other, *masks: two_updates((one, other), masks),
            parallel.make_mesh(cores),
            (parallel.SEQUENCE,) * 4,
            parallel.SHARED,
        )
        state = mapped(*data, *masks)
        close(state[:3], expected[:3])
        assert copies(state) == [cores, 1]


@pytest.mark.parametrize("batches", [1, 50])
def test_a_mean_that_is_large_beside_the_deviation(batches):
    data = np.random.default_rng(0).normal(1e4, 1, (batches, 100_000 // batches, 2))
    state = normalizer.initial_state(PAIR)
    for batch in data.astype(np.float32):
        state = update(state, batch)
    expected = by_numpy(data.astype(np.float32).reshape(-1, 2))
    close(state.mean, expected.mean, atol=2e-3, rtol=0)
    close(state.variance_sum, expected.variance_sum, rtol=1e-4)


def test_a_variance_is_never_negative():
    """Of equal samples, of which rounding leaves less than nothing."""
    state = update(normalizer.initial_state(PAIR), jnp.full((28, 2), 3.3e9))
    assert (state.variance_sum < 0).all()
    close(normalizer.scale(state), np.full(2, 0.01))


@pytest.mark.parametrize("large", [np.finfo(np.float32).max, -1e30])
def test_large_samples_are_clamped_and_named(large):
    """Their sums and squares are beyond float32."""
    batch = {"a": np.ones((4, 3), np.float32), "b": np.ones(4, np.int32)}
    batch["a"][2:, 1] = large
    state = normalizer.initial_state(TREE)
    for _ in range(3):
        state = update(state, batch)
    scales = normalizer.scale(state)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, scales)))
    close(state.mean["a"], [1.0, np.sign(large) * normalizer.LARGEST / 2, 1.0])
    for mask, flags in ((None, [0, 1, 0]), (jnp.array([1, 1, 0, 0]), [0, 0, 0])):
        found = normalizer.beyond("observation", batch, TREE, mask)
        (of_a, a), (_, b) = found.items()
        assert of_a.endswith("gives one in observation['a']")
        assert a.tolist() == flags and b == 0


def test_samples_count_however_many_there_were_before():
    """To 2^30 samples each batch adds less than the distance between two floats."""
    batch = jnp.tile(jnp.array([[100.0], [102.0], [101.0], [101.0], [101.0]]), (13, 2))
    before, updates = 2**30, 2**12
    added = len(batch) * updates

    @jax.jit
    def many(state):
        return jax.lax.fori_loop(0, updates, lambda i, x: update(x, batch), state)

    state = normalizer.initial_state(PAIR)._replace(
        count=jnp.float32(before),
        mean=jnp.full(2, 100.0),
        variance_sum=jnp.full(2, 0.4 * before),
    )
    share = added / (before + added)
    squares = 0.4 * (before + added) + before * share
    expected = before + added, np.full(2, 100 + share), np.full(2, squares)
    close(many(state)[:3], expected, rtol=1e-6, atol=0)
    assert expected[1][0] > 100.0002  # which is more than the tolerance


def test_nothing_seen_changes_nothing_but_what_is_clipped():
    state = normalizer.initial_state(TREE)
    x = {"a": jnp.array([1.0, -20.0, 20.0]), "b": jnp.float32(0.5)}
    expected = {"a": np.array([1.0, -5.0, 5.0]), "b": 0.5}
    close(normalizer.normalize(state, x, clip=5.0), expected, rtol=0, atol=0)
    batch = jax.tree.map(lambda x: x[None], x)
    close(update(state, batch, jnp.zeros(1)), state, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows_unless_masked(bad):
    state = update(normalizer.initial_state(PAIR), jnp.ones((2, 2)))
    batch, mask = jnp.array([[bad, 1.0], [2.0, 3.0]]), jnp.array([0, 1])
    assert np.isfinite(update(state, batch, mask).mean).all()
    state = update(update(state, batch), jnp.ones((2, 2)))
    for x in (state.mean, state.variance_sum):
        np.testing.assert_array_equal(np.isfinite(x), [False, True])


def observer() -> Agent:
    """Its extras, and its learner's metrics, are the observation and reward it sees."""

    def actor_step(keys, params, actor_state, timestep):
        seen = (timestep.observation, timestep.reward)
        return actor_state + 1, ActorOutput(jnp.zeros(len(keys), jnp.int32), seen)

    def learner_step(key, state, trajectory):
        timesteps = trajectory.timesteps
        seen = (timesteps.observation, timesteps.reward)
        return LearnerState(state.shared + 1, state.local + 2), {"seen": seen}

    return Agent(
        initial_learner_state=lambda key: LearnerState(jnp.int32(0), jnp.int32(0)),
        learner_step=learner_step,
        actor_params=lambda state: state.shared,
        initial_actor_state=lambda batch_size: jnp.zeros(batch_size, jnp.int32),
        actor_step=actor_step,
        greedy_actor_step=actor_step,
    )


TYPES = [FIRST, MID, MID, LAST, FIRST, LAST, FIRST, MID, MID, MID, MID, LAST, FIRST]


def some_timesteps(observation=None):
    """[13, 2] timesteps with distinct rewards, in episodes of several lengths."""
    step_type = np.stack([TYPES, [MID, *TYPES[:-1]]], 1).astype(np.int32)
    random = np.random.default_rng(0)
    reward = random.normal(1, 3, step_type.shape) * (step_type != FIRST)
    if observation is None:
        observation = random.normal(5, 2, (*step_type.shape, 3)).astype(np.float32)
    return dm_env.TimeStep(
        step_type, reward.astype(np.float32), np.ones_like(reward), observation
    )


def trajectories(agent, timesteps, length=4):
    """Yields (learner state before, what the actor saw, metrics: what the learner saw).

    Both saw the same, whatever the agent.
    """
    agent = jitted(agent)
    state, actor_state = agent.initial_learner_state(None), agent.initial_actor_state(2)
    for start in range(0, len(timesteps.reward) - length, length):
        before, outputs, params = actor_state, [], agent.actor_params(state)
        for t in range(start, start + length):
            arguments = (jnp.zeros(2), params, actor_state, rows(timesteps, t))
            close(agent.greedy_actor_step(*arguments), agent.actor_step(*arguments))
            actor_state, output = agent.actor_step(*arguments)
            outputs.append(output)
        outputs = jax.tree.map(lambda *x: jnp.stack(x), *outputs)
        part = rows(timesteps, slice(start, start + length + 1))
        after, metrics = agent.learner_step(
            None, state, Trajectory(part, outputs, before)
        )
        close(rows(metrics["seen"], slice(-1)), outputs.extras)
        yield state, outputs.extras, metrics
        state = after


def test_acting_and_learning_see_observations_through_what_was_before():
    timesteps = some_timesteps()
    agent = normalizer.normalize_observations(observer(), VECTOR)
    for i, (state, _, metrics) in enumerate(trajectories(agent, timesteps)):
        (statistics, shared), local = state
        before = timesteps.observation[: 4 * i].reshape(-1, 3)
        assert (int(shared), int(local), int(statistics.count)) == (i, 2 * i, 8 * i)
        expected = part = timesteps.observation[4 * i : 4 * i + 5]
        if i:
            std = np.sqrt(before.var(0, ddof=1) + 1e-4)
            expected = (part - before.mean(0)) / std
        close(metrics["seen"][0], np.clip(expected, -10, 10), rtol=1e-4)
        assert metrics["observation_scale"] > 0


def test_rewards_are_divided_by_the_deviation_of_discounted_returns():
    timesteps = some_timesteps()
    returns = np.zeros_like(timesteps.reward)
    for t, (step_type, reward) in enumerate(zip(*timesteps[:2], strict=True)):
        before = returns[t - 1] if t else np.zeros(2)
        returns[t] = np.where(step_type == FIRST, 0, 0.9 * before) + reward
    counts = timesteps.step_type != FIRST
    agent = normalizer.normalize_rewards(observer(), 0.9)
    for i, (state, _, metrics) in enumerate(trajectories(agent, timesteps)):
        before = returns[: 4 * i][counts[: 4 * i]]
        assert int(state.shared.statistics.count) == before.size
        std = np.sqrt(before.var(ddof=1) + 1e-4) if i else 1.0
        expected = np.clip(timesteps.reward[4 * i : 4 * i + 5] / std, -10, 10)
        close(metrics["seen"][1], expected, rtol=1e-4)


def test_what_is_no_quantity_stays_and_bytes_alone_are_refused():
    image = specs.BoundedArray((8, 8, 1), np.uint8, 0, 255)
    spec = {
        "action_mask": specs.Array((), np.int32),
        "image": image,
        "name": specs.DiscreteArray(5, np.uint8),
        "size": specs.Array((), np.int64),
    }
    numbers = np.arange(26, dtype=np.int32).reshape(13, 2)
    pixels = np.full((13, 2, 8, 8, 1), 200, np.uint8)
    timesteps = some_timesteps(
        {
            "action_mask": numbers % 2,
            "image": pixels,
            "name": numbers % 5,
            "size": numbers,
        }
    )
    agent = normalizer.normalize_observations(observer(), spec)
    *_, (_, (acted, _), metrics) = trajectories(agent, timesteps)
    np.testing.assert_array_equal(acted["name"], numbers[8:12] % 5)
    np.testing.assert_array_equal(metrics["seen"][0]["name"], numbers[8:] % 5)
    np.testing.assert_array_equal(acted["action_mask"], numbers[8:12] % 2)
    np.testing.assert_array_equal(acted["image"], pixels[8:12])
    assert acted["size"].dtype == jnp.float32 and np.abs(acted["size"]).max() < 4
    with pytest.raises(UserError, match=r"observation_spec\['image'\].*leave.*out"):
        normalizer.normalize_observations(observer(), {"image": image})


def test_where_nothing_is_a_quantity_nothing_is_normalized():
    agent = observer()
    assert normalizer.normalize_observations(agent, specs.DiscreteArray(5)) is agent


def test_a_clipped_infinity_is_in_the_metrics_of_its_own_update():
    agent = normalizer.normalize_observations(observer(), VECTOR)
    timesteps = some_timesteps()
    timesteps.observation[5, 1, 2] = np.inf
    metrics = [x for *_, x in trajectories(agent, timesteps)]
    scales = [x["observation_scale"] for x in metrics]
    np.testing.assert_array_equal(np.isfinite(scales), [True, False, False])
    (name,) = (x for x in metrics[1] if x.startswith(FAILED))
    assert name.endswith("the environment gives one in observation")
    assert metrics[1][name].tolist() == [0, 0, 1]


def test_transformations_compose_in_any_order():
    action, stack = specs.DiscreteArray(2), transformations.stacked_spec(VECTOR, 2)
    see_observations = normalizer.normalize_observations

    def see_stacks(agent):
        return transformations.stack_frames(agent, 2, VECTOR)

    def see_actions(agent):
        return transformations.observe_last_action(agent, action)

    def see_rewards(agent):
        return normalizer.normalize_rewards(agent, 0.9)

    scaled_first = see_observations(see_stacks(see_actions(observer())), VECTOR)
    scaled_last = see_observations(see_rewards(observer()), (stack, action))
    for agent in (see_rewards(scaled_first), see_stacks(see_actions(scaled_last))):
        for _, (observation, _), _ in trajectories(agent, some_timesteps()):
            assert observation[0].shape == (4, 2, 6)


def normalizing_impala(environment):
    """That looks at the last reward too."""
    spec = environment.observation_spec()
    network = networks.Config(hidden_sizes=(8,), last_reward=True)
    network = networks.actor_critic(spec, environment.action_spec(), network)
    agent = impala.make_agent(impala.Config(reward_clipping="none"), network)
    agent = normalizer.normalize_rewards(agent, 0.99)
    return normalizer.normalize_observations(agent, spec)


def last(iterator):
    for item in iterator:
        pass
    return item


def test_impala_in_anakin_whatever_the_cores():
    agent = normalizing_impala(Counter())
    results = []
    for cores in (1, 2):
        options = {"batch_size": 8, "unroll_length": 4, "total_steps": 8 * 4 * 6}
        state, metrics = last(anakin.train(agent, Counter(), cores=cores, **options))
        statistics, inner = agent.actor_params(state.learner)
        close(statistics.mean, [2.5])  # of 0 to 5, four times over
        assert statistics.count == 8 * 24 and inner.statistics.count == 8 * 20
        assert all(np.isfinite(x).all() for x in jax.tree.leaves((inner, metrics)))
        shared = state.learner.shared
        assert copies(shared) == [cores, 1]
        results.append(jax.tree.map(np.asarray, shared))
    close(*map(without_lost, results))


def test_impala_in_sebulba():
    state, metrics = last(
        sebulba.train(
            normalizing_impala(HostCounter()),
            lambda number: HostCounter(),
            unroll_length=3,
            total_steps=12 * 8,
            cores=sebulba_cores.split(jax.devices()[:3], 1, 2),
            threads_per_core=1,
        )
    )
    statistics, inner = state.learner.shared
    close(statistics.mean, [2.5])
    assert statistics.count == 12 * 8  # of which 16 + 3 are FIRST, and have no reward
    assert inner.statistics.count == 12 * 8 - 19
    assert np.isfinite(metrics["loss/total"])
    assert copies(state.learner.shared) == [2, 1]
