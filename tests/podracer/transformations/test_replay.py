"""Replay: a ring that holds what was delivered, and batches of it for any agent."""

import collections
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import networks, transformations
from podracer.agent import ActorOutput, Agent, LearnerState, Trajectory
from podracer.agents import algorithm, from_flags, impala, ppo
from podracer.errors import UserError
from podracer.transformations import priorities, replay, ring
from podracer.transformations.replay import Config
from tests.agents import counting
from tests.jitted import jitted

FRAME = specs.Array((2, 2, 1), np.uint8)
NETWORK = networks.Config(hidden_sizes=(4,))
T = 3


def keeper() -> Agent:
    """An agent that counts its updates, and whose metric is what it learns from."""

    def actor_step(keys, params, actor_state, timestep):
        action = jnp.zeros(timestep.reward.shape, jnp.int32)
        return actor_state + 1, ActorOutput(action, timestep.reward)

    def learner_step(key, state, trajectory):
        return LearnerState(state.shared + 1, state.local), {"seen": trajectory}

    return Agent(
        initial_learner_state=lambda key: LearnerState(jnp.int32(0), ()),
        learner_step=learner_step,
        actor_params=lambda state: (),
        initial_actor_state=lambda batch_size: jnp.zeros(batch_size, jnp.int32),
        actor_step=actor_step,
        greedy_actor_step=actor_step,
    )


def weigher() -> Agent:
    """A keeper that also shows weights, and whose priorities are mean rewards."""
    agent = keeper()

    def weighted_step(key, state, trajectory, weight):
        state, metrics = agent.learner_step(key, state, trajectory)
        priority = trajectory.timesteps.reward.mean(axis=0)
        return state, metrics | {"weight": weight}, priority

    return agent._replace(weighted_step=weighted_step)


def delivered(batch_size, seed, agent=None, spec=FRAME):
    """A trajectory of random numbers, of the kind that the agent's actors deliver."""
    random = np.random.default_rng(seed)

    def fill(axis, x):
        shape = (*x.shape[:axis], batch_size, *x.shape[axis + 1 :])
        numbers = random.integers(0, 2 if x.dtype == np.int32 else 256, shape)
        return jnp.asarray(numbers, x.dtype)

    return ring.along(fill, replay.shapes(agent or keeper(), spec, T))


def one(trajectory, number):
    """One trajectory of a batch, as a batch of its own."""
    return ring.along(lambda axis, x: np.take(x, [number], axis), trajectory)


def assert_equal(tree, other):
    jax.tree.map(np.testing.assert_array_equal, tree, other)


@pytest.mark.parametrize("sizes", [[2, 2, 2, 2], [3, 3, 3, 3, 1], [5, 5, 4, 5]])
def test_a_ring_is_a_deque(sizes):
    """Of five slots: the newest five trajectories, bit for bit, whatever wraps around."""
    kept = ring.empty(replay.shapes(keeper(), FRAME, T), 5)
    slow = collections.deque(maxlen=5)
    assert kept.trajectories.timesteps.observation.dtype == jnp.uint8
    for seed, size in enumerate(sizes):
        trajectory = delivered(size, seed)
        kept = jax.jit(ring.insert)(kept, trajectory)
        slow.extend(one(trajectory, i) for i in range(size))
        assert int(kept.filled) == len(slow)
        newest_first = (int(kept.next) - 1 - np.arange(len(slow))) % 5
        assert_equal(np.asarray(ring.age_of(kept, newest_first)), np.arange(len(slow)))
        for slot, expected in zip(newest_first, reversed(slow), strict=True):
            assert_equal(ring.take(kept, jnp.array([slot])), expected)


def test_samples_are_uniform_over_what_is_there():
    kept = ring.empty(replay.shapes(keeper(), FRAME, T), 16)
    kept = ring.insert(kept, delivered(10, 0))
    slots = np.asarray(ring.sample(jax.random.key(0), kept, 10_000))
    counts = np.bincount(slots, minlength=16)
    assert (counts[10:] == 0).all()
    chi_square = ((counts[:10] - 1000) ** 2 / 1000).sum()
    assert chi_square < 21.7  # 0.99 of the distribution with 9 degrees of freedom


def made(module, **config):
    """The replaying agent that flags make."""
    return from_flags.make_agent(
        from_flags.Parts(
            algorithm.of(module),
            module.Config(total_steps=100),
            NETWORK,
            FRAME,
            specs.DiscreteArray(3),
            transformations.Interface(),
            replay=Config(**config),
            unroll_length=T,
        )
    )


def both(trajectory, other):
    return ring.along(lambda axis, *x: jnp.concatenate(x, axis), trajectory, other)


@pytest.mark.parametrize("fresh", [True, False])
def test_it_learns_from_the_delivered_and_the_sampled_in_one_batch(fresh):
    config = Config(8, samples_per_insert=2.0, fresh=fresh)
    agent = jitted(replay.replay(keeper(), config, FRAME, T))
    state = agent.initial_learner_state(jax.random.key(0))
    for seed in range(3):
        key, trajectory = jax.random.key(seed), delivered(4, seed)
        state, metrics = agent.learner_step(key, state, trajectory)
        slots = ring.sample(jax.random.split(key)[0], state.local.ring, 8)
        batch = ring.take(state.local.ring, slots)
        assert_equal(metrics["seen"], both(trajectory, batch) if fresh else batch)
        assert metrics["trained"] == 1.0 and int(state.shared) == seed + 1
        assert metrics["replay_filled"] == (0.5, 1.0, 1.0)[seed]
        newest = slots // 4 == seed % 2
        assert metrics["replay_age"] == jnp.mean(~newest)


def test_impala_learns_as_it_does_from_that_batch():
    """V-trace has the behaviour policy of each trajectory, fresh or not; the
    learning rate decays by what is learned from."""
    agent = jitted(made(impala, capacity=8, samples_per_insert=2.0))
    network = networks.actor_critic(FRAME, specs.DiscreteArray(3), NETWORK)
    inner = jitted(impala.make_agent(impala.Config(total_steps=300), network))
    state = agent.initial_learner_state(jax.random.key(0))
    alone = inner.initial_learner_state(jax.random.key(0))
    assert_equal(state.shared, alone.shared)
    for seed in range(3):
        key, trajectory = jax.random.key(seed), delivered(4, seed, inner)
        state, metrics = agent.learner_step(key, state, trajectory)
        sample_key, learn_key = jax.random.split(key)
        slots = ring.sample(sample_key, state.local.ring, 8)
        batch = both(trajectory, ring.take(state.local.ring, slots))
        alone, expected = inner.learner_step(learn_key, alone, batch)
        assert_equal(state.shared, alone.shared)
        assert_equal({x: metrics[x] for x in expected}, expected)
        assert_equal(agent.actor_params(state), inner.actor_params(alone))
        rate = impala.Config().learning_rate * (1.0 - seed * 12 / 100)
        np.testing.assert_allclose(metrics["learning_rate"], rate, rtol=1e-6)


def test_nothing_is_learned_before_the_minimum_fill():
    inner, calls = counting(keeper())
    agent = jitted(replay.replay(inner, Config(8, minimum_fill=5), FRAME, T))
    state = agent.initial_learner_state(jax.random.key(0))
    state, metrics = agent.learner_step(jax.random.key(1), state, delivered(4, 0))
    assert int(state.shared) == 0 and int(state.local.ring.filled) == 4
    assert metrics["trained"] == 0.0 and not metrics["seen"].timesteps.reward.any()
    state, metrics = agent.learner_step(jax.random.key(2), state, delivered(4, 1))
    assert int(state.shared) == 1 and int(state.local.ring.filled) == 8
    assert metrics["trained"] == 1.0 and metrics["seen"].timesteps.reward.any()
    assert calls["learner_step"] == 1  # traced for both branches


def test_one_batch_may_be_worth_several_updates():
    def means(agent):
        """Its metric as a scalar, which can be averaged over updates."""

        def learner_step(key, state, trajectory):
            state, metrics = agent.learner_step(key, state, trajectory)
            return state, {"mean": metrics["seen"].timesteps.reward.mean()}

        return agent._replace(learner_step=learner_step)

    config = Config(8, samples_per_insert=2.0, fresh=False, updates=4)
    agent = jitted(replay.replay(means(keeper()), config, FRAME, T))
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory, key = delivered(4, 0), jax.random.key(1)
    state, metrics = agent.learner_step(key, state, trajectory)
    assert int(state.shared) == 4
    kept, found = state.local.ring, []
    for each in jax.random.split(key, 4):
        slots = ring.sample(jax.random.split(each)[0], kept, 2)
        found.append(float(ring.take(kept, slots).timesteps.reward.mean()))
    assert len({*found}) > 1
    np.testing.assert_allclose(metrics["mean"], np.mean(found), rtol=1e-5)


@pytest.mark.parametrize("fresh", [True, False])
def test_by_priority_it_learns_from_what_matters_and_keeps_how_much(fresh):
    """Three batches of four in a ring of eight, beside the same in numpy."""
    config = Config(8, 2.0, fresh=fresh, priority=0.5, importance=0.7)
    agent = jitted(replay.replay(weigher(), config, FRAME, T))
    state = agent.initial_learner_state(jax.random.key(0))
    masses = np.zeros(8, np.float32)
    for seed in range(3):
        key, trajectory = jax.random.key(seed), delivered(4, seed)
        into = np.arange(4) + 4 * (seed % 2)
        masses[into] = masses.max() or 1.0
        state, metrics = agent.learner_step(key, state, trajectory)
        kept, filled = state.local.ring, min(4 * seed + 4, 8)
        sample_key = jax.random.split(key)[0]
        padded = priorities.empty(8).at[:8].set(masses)
        slots = np.asarray(priorities.sample(sample_key, padded, filled, 8))
        batch = ring.take(kept, slots)
        assert_equal(metrics["seen"], both(trajectory, batch) if fresh else batch)
        weight = (masses[slots] / masses[slots].min()) ** -0.7
        expected = np.concatenate([np.ones(4), weight]) if fresh else weight
        np.testing.assert_allclose(metrics["weight"], expected, rtol=1e-5)
        np.testing.assert_allclose(metrics["replay_weight"], weight.mean(), rtol=1e-5)
        priority = metrics["seen"].timesteps.reward.mean(axis=0)
        assert metrics["replay_priority"] == priority.mean()
        learned = np.concatenate([into, slots]) if fresh else slots
        masses[learned] = np.asarray(priority) ** 0.5
        np.testing.assert_allclose(state.local.masses[:8], masses, rtol=1e-6)
        masses = np.array(state.local.masses[:8])
    assert int(state.shared) == 3


def test_each_of_several_updates_samples_by_the_priorities_of_the_last():
    """Where one trajectory alone has something to learn from, all samples are of it until an
    update says that nothing is left; and before the minimum fill all are new."""

    def weighted_step(key, state, trajectory, weight):
        left = trajectory.actor_state == 7  # of the marked one
        seen = {"marked": left.mean()}
        priority = jnp.where(state.shared == 1, 0.0, 1.0 * left)
        return state._replace(shared=state.shared + 1), seen, priority

    config = Config(4, 32.0, 4, fresh=False, updates=4, priority=1.0)
    inner = keeper()._replace(weighted_step=weighted_step)
    agent = jitted(replay.replay(inner, config, FRAME, T))
    state = agent.initial_learner_state(jax.random.key(0))
    first = delivered(2, 0)._replace(actor_state=jnp.array([7, 0]))
    state, metrics = agent.learner_step(jax.random.key(0), state, first)
    assert metrics["trained"] == 0.0 and state.local.masses.tolist() == [1, 1, 0, 0]
    state, metrics = agent.learner_step(jax.random.key(1), state, delivered(2, 1))
    assert int(state.shared) == 4
    # 16 samples of four: the first update has all; the second then the marked one alone, and
    # says that nothing is left, so that the third has all again, and the fourth it alone.
    least = priorities.LEAST
    np.testing.assert_allclose(state.local.masses, [1, least, least, least])
    assert 0.5 < metrics["marked"] < 0.75


def test_a_priority_that_is_no_number_is_in_the_metrics():
    """Which stops a run, as any metric that is not finite does."""

    def broken(key, state, trajectory, weight):
        return state, {}, jnp.ones(weight.shape).at[0].set(jnp.nan)

    inner = keeper()._replace(weighted_step=broken)
    agent = jitted(replay.replay(inner, Config(4, priority=0.6), FRAME, T))
    state = agent.initial_learner_state(jax.random.key(0))
    state, metrics = agent.learner_step(jax.random.key(0), state, delivered(2, 0))
    assert np.isnan(metrics["replay_priority"])


def test_without_priorities_there_are_no_masses():
    agent = replay.replay(weigher(), Config(8), FRAME, T)
    state = jax.eval_shape(agent.initial_learner_state, jax.random.key(0))
    assert state.local._fields == ("ring", "agent")  # as in earlier checkpoints
    assert agent.weighted_step is None
    assert replay.replay(weigher(), Config(priority=0.6), FRAME, T).weighted_step


def test_an_agent_that_cannot_weigh_trajectories_is_refused():
    with pytest.raises(
        UserError, match=r"replay.priority is 0.6, .* choose 0, or"
    ) as e:
        made(impala, capacity=8, priority=0.6)
    assert "\n" not in str(e.value)


def test_outside_stacked_frames_it_keeps_single_ones_in_bytes():
    stacking = transformations.stack_frames(keeper(), 4, FRAME)
    agent = jitted(replay.replay(stacking, Config(8), FRAME, T))
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory = delivered(4, 0, stacking)
    state, metrics = agent.learner_step(jax.random.key(0), state, trajectory)
    assert metrics["seen"].timesteps.observation.shape == (T + 1, 8, 2, 2, 4)
    kept = state.local.ring.trajectories
    assert kept.timesteps.observation.shape == (T + 1, 8, 2, 2, 1)
    assert kept.timesteps.observation.dtype == jnp.uint8
    assert kept.actor_state[0].shape == (8, 2, 2, 3)
    assert_equal(ring.take(state.local.ring, jnp.arange(4)), trajectory)


def test_without_a_capacity_an_agent_stays_as_it_is():
    agent = keeper()
    assert replay.replay(agent, Config(), FRAME, T) is agent


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"capacity": -1}, "replay.capacity is -1"),
        ({"capacity": 4, "minimum_fill": 5}, "minimum_fill is 5, more than .* larger"),
        ({"samples_per_insert": 0.0}, "samples_per_insert is 0.0; it must be above 0"),
        ({"samples_per_insert": 1e30}, r"is 1e\+30; .* at most 10,000"),
        ({"samples_per_insert": np.nan}, "samples_per_insert is nan"),
        ({"updates": 0}, "replay.updates is 0"),
        ({"priority": -0.1}, "replay.priority is -0.1; it must be from 0 to 1"),
        ({"priority": np.nan}, "replay.priority is nan"),
        ({"importance": 1.1}, "replay.importance is 1.1; it must be from 0 to 1"),
        ({"updates": 2}, "updates is 2, for sampled .* --replay.no-fresh"),
    ],
)
def test_what_no_replay_can_be_is_one_line(config, line):
    with pytest.raises(UserError, match=line) as error:
        Config(**config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "batch_size", "line"),
    [
        (Config(4), 5, "replay.capacity is 4 .* fewer than the 5 delivered"),
        (Config(8, samples_per_insert=0.3), 4, "is 0.3, which is 1.2 trajectories"),
        (Config(8, samples_per_insert=0.1), 4, "is 0.1, which is 0.4 trajectories"),
    ],
)
def test_what_does_not_suit_the_batch_is_one_line(config, batch_size, line):
    agent = replay.replay(keeper(), config, FRAME, T)
    state = jax.eval_shape(agent.initial_learner_state, jax.random.key(0))
    with pytest.raises(UserError, match=line):
        jax.eval_shape(
            agent.learner_step, jax.random.key(0), state, delivered(batch_size, 0)
        )


def test_trajectories_of_another_kind_are_refused():
    kept = ring.empty(replay.shapes(keeper(), FRAME, T), 5)
    trajectory = delivered(2, 0)
    other = trajectory._replace(actor_state=trajectory.actor_state.astype(jnp.float32))
    with pytest.raises(UserError, match=r"\.actor_state of a trajectory .*float32"):
        ring.insert(kept, other)
    shorter = jax.tree.map(lambda x: x[:-1], trajectory[:2])
    with pytest.raises(UserError, match="of a trajectory is .* unroll_length"):
        ring.insert(kept, Trajectory(*shorter, trajectory.actor_state))


def test_an_agent_that_does_not_correct_for_stale_data_is_refused():
    made(ppo)
    with pytest.raises(UserError, match=r"ppo does not say OFF_POLICY .*\(impala"):
        made(ppo, capacity=8)


def test_members_of_a_population_fill_rings_of_their_own():
    agent = replay.replay(keeper(), Config(8, minimum_fill=8), FRAME, T)
    step = jax.jit(jax.vmap(partial(agent.learner_step, jax.random.key(0))))
    states = jax.vmap(agent.initial_learner_state)(jax.random.split(jax.random.key(0)))
    trajectories = jax.tree.map(
        lambda *x: jnp.stack(x), *(delivered(4, i) for i in (0, 1))
    )
    for learned in (0, 1, 2):
        states, _ = step(states, trajectories)
        assert_equal(states.shared, jnp.full(2, learned))
    ring_of = states.local.ring.trajectories.timesteps.observation
    assert_equal(
        ring_of[:, :, :4], trajectories.timesteps.observation.astype(jnp.uint8)
    )


VECTOR = specs.BoundedArray((3,), np.float32, -1.0, 1.0)


@pytest.mark.parametrize(
    ("wrap", "spec"),
    [
        (lambda agent: transformations.stack_frames(agent, 2, FRAME), FRAME),
        (lambda agent: transformations.scale_observations(agent, VECTOR), VECTOR),
        (lambda agent: transformations.normalize_observations(agent, VECTOR), VECTOR),
        (lambda agent: transformations.normalize_rewards(agent, 0.9), VECTOR),
    ],
    ids=["frames", "scaled", "normalized", "rewards"],
)
def test_transformations_pass_weights_and_priorities_on(wrap, spec):
    """What is learned from by weight is what is learned from without."""
    agent, key = jitted(wrap(weigher())), jax.random.key(0)
    trajectory, weight = delivered(2, 0, agent, spec), jnp.float32([2.0, 0.5])
    state = agent.initial_learner_state(key)
    plain, metrics = agent.learner_step(key, state, trajectory)
    weighted_step = jax.jit(agent.weighted_step)
    weighted, others, priority = weighted_step(key, state, trajectory, weight)
    assert_equal(others.pop("weight"), weight)
    assert_equal((weighted, others), (plain, metrics))
    assert_equal(priority, metrics["seen"].timesteps.reward.mean(axis=0))
    assert wrap(keeper()).weighted_step is None
