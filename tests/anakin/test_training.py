"""Anakin: alignment, cores, determinism, long runs, bad input."""

import functools
import itertools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

import anakin
from anakin import acting, training
from envs_jax.catch import Catch
from envs_jax.wrappers import Batched, auto_reset
from podracer import kernels, networks, parallel
from podracer.agents import impala
from podracer.errors import UserError
from podracer.kernels import loops
from tests.agents import counting, reinforce
from tests.environments import Counter, Explosive

SMALL = networks.Config(hidden_sizes=(16,))
RECURRENT = networks.Config(hidden_sizes=(8,), memory="lstm", memory_size=8)


@functools.cache
def make_agent(environment, network=SMALL, **config):
    network = networks.actor_critic(
        environment.observation_spec(), environment.action_spec(), network
    )
    return impala.make_agent(impala.Config(**config), network)


@functools.cache
def starter(agent, environment, batch_size, unrolls):
    """() -> (parameters, actors, keys), compiled."""

    @jax.jit
    def start():
        state = training.initial_state(
            jax.random.key(0), jnp.arange(batch_size), agent, environment
        )
        keys = tuple(jax.random.split(state.key, unrolls))
        return agent.actor_params(state.learner), state.actors, keys

    return start


def unroll_once(
    environment,
    network=SMALL,
    unroll_length=3,
    batch_size=2,
    unrolls=2,
):
    """The agent, its parameters, and trajectories in a row without learning."""
    agent = make_agent(environment, network)
    environment = Batched(auto_reset(environment))

    @jax.jit
    def run(params, actors, key):
        return acting.unroll(
            agent.actor_step, params, environment, unroll_length, actors, key
        )

    params, actors, keys = starter(agent, environment, batch_size, unrolls)()
    trajectories = []
    for key in keys:
        actors, trajectory = run(params, actors, key)
        trajectories.append(trajectory)
    return agent, params, trajectories


def test_row_t_of_a_trajectory_is_row_0_of_the_next():
    _, _, (one, two, three) = unroll_once(Counter(), unrolls=3)
    for before, after in ((one, two), (two, three)):
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(a[-1], b[0]),
            before.timesteps,
            after.timesteps,
        )
    seen = np.concatenate(
        [x.timesteps.observation[:-1, 0, 0] for x in (one, two, three)]
    )
    np.testing.assert_array_equal(seen, [0, 1, 2, 3, 4, 5, 0, 1, 2])
    rewards = np.concatenate([x.timesteps.reward[1:, 0] for x in (one, two, three)])
    np.testing.assert_array_equal(rewards, [1, 2, 3, 4, 5, 0, 1, 2, 3])


def on_an_accelerator(monkeypatch):
    """Loops compute what they would there."""
    monkeypatch.setattr(loops, "by_platform", lambda *x, default, **_: default(*x))


class Image(Catch):
    """Its board has a channel."""

    def observation_spec(self):
        return super().observation_spec().replace(shape=(self.rows, self.columns, 1))

    def _board(self, state):
        return super()._board(state)[..., None]


def test_images_are_delivered_whole(monkeypatch):
    """An accelerator stores them flat, see tests/podracer/kernels/test_loops.py."""
    on_an_accelerator(monkeypatch)
    _, _, (trajectory,) = unroll_once(Image(), unroll_length=7, unrolls=1)
    boards = trajectory.timesteps.observation
    assert boards.shape == (8, 2, 10, 5, 1)
    boards = boards[..., 0]
    for row in range(8):  # the ball's, and nothing else is there
        np.testing.assert_array_equal(boards[row, :, row].sum(-1), 1)
        assert not boards[row, :, [x for x in range(9) if x != row]].any()


@pytest.mark.parametrize(
    "unroll_length", [3, 4, pytest.param(9, marks=pytest.mark.core)]
)
def test_several_steps_in_an_iteration_are_what_they_are_one_by_one(
    unroll_length, monkeypatch
):
    on_an_accelerator(monkeypatch)
    several = unroll_once(Counter(), RECURRENT, unroll_length)[2]
    with kernels.without("loops"):
        one = unroll_once(Counter(), RECURRENT, unroll_length)[2]
    chex.assert_trees_all_close(one, several, rtol=1e-6)


def test_stored_memory_replays_to_the_actors_own_logits():
    environment = Counter()
    _, params, trajectories = unroll_once(environment, RECURRENT, unroll_length=4)
    network = networks.actor_critic(
        environment.observation_spec(), environment.action_spec(), RECURRENT
    )
    unroll = jax.jit(network.unroll)
    for trajectory in trajectories:
        replayed = unroll(params, trajectory.actor_state, trajectory.timesteps)
        np.testing.assert_allclose(
            replayed.policy.logits[:-1], trajectory.outputs.extras.logits, atol=1e-5
        )


@functools.cache
def first_state(environment, cores):
    """Of an agent with any configuration."""
    agent = make_agent(environment)
    environment = Batched(auto_reset(environment))
    return parallel.over_cores(
        lambda key, index: training.initial_state(key, index, agent, environment),
        parallel.make_mesh(cores),
        (parallel.SHARED, parallel.BATCH),
        training.LAYOUT,
    )(jax.random.key(0), jnp.arange(16))


def trained(environment, cores, updates, **config):
    """The states after each of `updates` single updates."""
    agent, state = make_agent(environment, **config), first_state(environment, cores)
    environment = Batched(auto_reset(environment))
    mesh = parallel.make_mesh(cores)
    step = parallel.over_cores(
        lambda state: training.make_step(agent, environment, 4)(state)[0],
        mesh,
        (training.LAYOUT,),
        training.LAYOUT,
    )
    states = []
    for _ in range(updates):
        state = jax.block_until_ready(step(state))
        states.append(state)
    return states


@pytest.mark.parametrize(
    ("reduction", "numbers"),
    [("sum", (2, 8)), pytest.param("mean", (8,), marks=pytest.mark.core)],
)
def test_any_number_of_cores_computes_the_same(reduction, numbers):
    one = trained(Catch(), 1, 2, reduction=reduction)
    for cores in numbers:
        many = trained(Catch(), cores, 2, reduction=reduction)
        # Acting with equal parameters: rollouts are equal bit for bit.
        jax.tree.map(np.testing.assert_array_equal, one[0].actors, many[0].actors)
        for a, b in zip(one, many, strict=True):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
                a.learner.shared.params,
                b.learner.shared.params,
            )


def test_podracers_averaging_sees_one_cores_share():
    """Summed per core, averaged over cores: on N cores the gradient is 1 / N of it."""
    moved = {}
    for cores in (1, 4):
        (state,) = trained(
            Catch(), cores, 1, reduction="podracer", max_gradient_norm=1e9
        )
        mean_square = state.learner.shared.opt_state[1].nu
        moved[cores] = mean_square["params"]["value_head"]["bias"]
    np.testing.assert_allclose(moved[4] * 16, moved[1], rtol=1e-4)


def train(environment, agent=None, **options):
    agent = agent or make_agent(environment)
    defaults = {"batch_size": 16, "unroll_length": 4, "total_steps": 640}
    return anakin.train(agent, environment, **defaults | options)


def last(iterator):
    for item in iterator:
        pass
    return item


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    shared = [
        bits(last(train(Catch(), seed=seed, cores=2))[0].learner.shared.params)
        for seed in (0, 0, 1)
    ]
    assert shared[0] == shared[1] != shared[2]


def test_each_core_and_each_update_draws_for_itself():
    def drawn(cores):
        agent = reinforce(50, 3)._replace(
            learner_step=lambda key, state, _: (
                state,
                {"drawn": jax.random.uniform(key)},
            )
        )
        sizes = {"batch_size": 2, "unroll_length": 1, "total_steps": 6}
        run = anakin.train(agent, Catch(), cores=cores, updates_per_report=1, **sizes)
        return [row["drawn"] for _, row in run]

    one, two = drawn(1), drawn(2)  # a metric is the mean over cores
    assert len({*one, *two}) == 6


def test_parameters_are_bit_equal_on_every_core_after_100_updates():
    state, metrics = last(train(Catch(), total_steps=6400, cores=8))
    assert metrics["updates"] == 100
    for leaf in jax.tree.leaves(state.learner.shared):
        copies = {np.asarray(x.data).tobytes() for x in leaf.addressable_shards}
        assert len(leaf.addressable_shards) == 8 and len(copies) == 1


def test_a_run_traces_its_unit_once():
    agent, calls = counting(make_agent(Catch()))
    next(train(Catch(), agent, cores=2))
    assert calls == {"actor_step": 1, "learner_step": 1}


@pytest.mark.slow
def test_500_calls_in_a_row_on_8_cores():
    state, metrics = last(
        train(Catch(), total_steps=500 * 64, updates_per_report=1, cores=8)
    )
    assert metrics["updates"] == 500 == int(state.updates)


@pytest.mark.core
def test_a_call_moves_nothing_between_host_and_device():
    mesh = parallel.make_mesh(2)
    start, call = training.make_programs(make_agent(Catch()), Catch(), mesh, 4, None)
    state = start(jax.random.key(0), jnp.arange(16))
    arguments = parallel.over_cores(
        lambda: (jnp.uint32(3), jnp.bool_(True)), mesh, (), parallel.SHARED
    )()
    with jax.transfer_guard("disallow"):
        after, _, _ = jax.block_until_ready(call(state, *arguments))
    assert int(after.updates) == 3
    donated = jax.tree.leaves(state.actors.environment) + [state.updates]
    assert all(x.is_deleted() for x in donated)


def test_metrics_take_no_more_memory_in_longer_calls():
    agent = make_agent(Catch())
    environment = Batched(auto_reset(Catch()))
    step = training.make_step(agent, environment, 4)

    def start():
        state = training.initial_state(
            jax.random.key(0), jnp.arange(8), agent, environment
        )
        return training.with_tally(state, step)

    state = jax.eval_shape(start)
    call = training.make_call(step)
    assert not any(
        isinstance(x, jax.ShapeDtypeStruct) and x.shape
        for x in jax.tree.leaves(
            jax.eval_shape(call, state, jnp.uint32(1), jnp.bool_(True))[1]
        )
    )


def test_steps_are_counted_past_32_bits(monkeypatch):
    """Two updates of 2^31 steps each; nothing of that size is computed."""
    environment = Counter()
    monkeypatch.setattr(
        training,
        "make_step",
        lambda *_: lambda s: (s._replace(updates=s.updates + 1), {}),
    )
    _, metrics = last(
        train(environment, batch_size=8, unroll_length=2**28, total_steps=2**32)
    )
    assert metrics["steps"] == 2**32 and metrics["updates"] == 2


def test_total_steps_are_rounded_up_to_whole_updates():
    _, metrics = last(train(Catch(), total_steps=65))
    assert metrics["steps"] == 128


def test_episode_metrics():
    seen = [metrics for _, metrics in train(Counter(), updates_per_report=5)]
    assert {m["episode_return"] for m in seen} == {15.0}
    assert {m["episode_length"] for m in seen} == {5.0}
    assert sum(m["episodes"] for m in seen) == 16 * ((40 + 0) // 6 + ((40 % 6) >= 5))


@pytest.mark.parametrize(
    ("shorter", "stops", "updates_per_report"),
    [
        ({"total_steps": 3 * 128, "updates_per_report": 2}, [], 2),  # its last is short
        ({"total_steps": 3 * 128, "updates_per_report": 3}, [], 2),
        ({"updates_per_report": 5}, [False, True], 1),  # stopped between two reports
    ],
)
def test_reports_elsewhere_after_a_resume_count_each_episode_once(
    shorter, stops, updates_per_report
):
    asked = itertools.chain(stops, itertools.repeat(bool(stops)))
    options = {"unroll_length": 8}
    before = [*train(Counter(), stopped=lambda: next(asked), **options, **shorter)]
    state = before[-1][0]
    assert int(state.updates) == (1 if stops else 3)
    options |= {"updates_per_report": updates_per_report}
    after = train(Counter(), restore=lambda *_: state, **options)
    rows = [row for _, row in (*before, *after) if row]
    assert rows[-1]["updates"] == 5
    assert sum(row["episodes"] for row in rows) == 16 * (40 // 6)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"batch_size": 10, "cores": 4}, "batch_size is 10, which 4 cores cannot"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"unroll_length": 0}, "unroll_length is 0; it must be at least 1"),
        ({"total_steps": -5}, "total_steps is -5; it must be at least 1"),
        ({"updates_per_report": 0}, "updates_per_report is 0; it must be at least 1"),
        ({"cores": 9}, "cores is 9; this program sees 8"),
        ({"seed": 2**32}, f"seed is {2**32}; it must be from 0 to {2**32 - 1}"),
    ],
)
def test_bad_input_is_one_line(options, line):
    with pytest.raises(UserError, match=line) as error:
        next(train(Catch(), **options))
    assert "\n" not in str(error.value)


def test_an_environment_that_breaks_the_protocol_is_named():
    class Broken(Counter):
        def step(self, key, state, action):
            state, timestep = super().step(key, state, action)
            return state, timestep._replace(reward=jnp.float32([1.0, 2.0]))

    with pytest.raises(UserError, match="reward") as error:
        next(train(Broken()))
    assert "\n" not in str(error.value)


def test_an_agent_for_other_actions_is_one_line():
    network = networks.actor_critic(
        Catch().observation_spec(), specs.BoundedArray((2,), np.float32, -1, 1)
    )
    agent = impala.make_agent(impala.Config(), network)
    line = r"^an action is float32 \(2,\); action_spec says .* make the agent for this"
    with pytest.raises(UserError, match=line):
        anakin.train(agent, Catch(), batch_size=8, unroll_length=2, total_steps=8)


@pytest.mark.parametrize(
    ("given", "after", "line"),
    [
        ((), lambda x: x, "initial_actor_state(4)['h'] has shape (); it must have 4"),
        ((8, 2), lambda x: x, "['h'] has shape (8, 2); it must have 4 rows"),
        ((4,), jnp.mean, "['h'] is float32 (4,) before a step and float32 () after"),
        ((4,), lambda x: x > 0, "['h'] is float32 (4,) before a step and bool (4,)"),
        ((4,), lambda x: [x, x], "['h'] is float32 (4,) before a step and missing"),
    ],
)
def test_actor_states_without_a_row_for_each_environment_are_one_line(
    given, after, line
):
    ours = reinforce(observations=50, actions=3)

    def actor_step(keys, params, actor_state, timestep):
        _, output = ours.actor_step(keys, params, (), timestep)
        return {"h": after(actor_state["h"])}, output

    agent = ours._replace(
        initial_actor_state=lambda batch_size: {"h": jnp.zeros(given)},
        actor_step=actor_step,
    )
    with pytest.raises(UserError, match=re.escape(line)) as error:
        anakin.train(
            agent, Catch(), batch_size=8, unroll_length=2, total_steps=16, cores=2
        )
    assert "\n" not in str(error.value)


@pytest.mark.core
def test_nan_stops_the_run_with_the_update_and_the_term():
    environment = Explosive(length=100, at=40)  # the first 32 steps are checked before
    calls = train(environment, total_steps=64 * 16, updates_per_report=1, cores=2)
    good = []
    with pytest.raises(
        FloatingPointError,
        match="update 10: the environment gives a reward that is not",
    ):
        for _, metrics in calls:
            good.append(metrics)
    assert len(good) == 9 and all(np.isfinite(m["loss/value"]) for m in good)


def test_a_report_before_the_first_episode_ends_is_no_failure_of_jax():
    """Where JAX_DEBUG_NANS stops each program that gives NaN."""
    environment = Counter(length=1000)
    agent, options = make_agent(environment), {"unroll_length": 2, "total_steps": 4}
    jax.config.update("jax_debug_nans", True)
    try:
        (_, row), *_ = anakin.train(
            agent, environment, batch_size=2, cores=1, updates_per_report=1, **options
        )
    finally:
        jax.config.update("jax_debug_nans", False)
    assert row["episodes"] == 0 and np.isnan(row["episode_return"])
