"""Populations that adapt: who takes over whose learner, and that nothing else is shared."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anakin import adaptation, population
from anakin.adaptation import NOBODY, Adaptation, Config, Updates, truncation
from anakin.command.flags import Train
from podracer import networks, parallel
from podracer.agents import from_flags, impala, ppo
from podracer.errors import UserError
from podracer.parallel import hosts
from podracer.runs import members
from podracer.transformations import replay
from tests.environments import Bandit

MEMBERS = 8
SIZES = {"batch_size": 4, "unroll_length": 4}  # 16 steps an update
FIELDS = Config(fields=("learning-rate=1e-4..1e-1",))


@functools.cache
def maker(environment=Bandit(), capacity=0):  # noqa: B008 frozen
    specs = environment.observation_spec(), environment.action_spec()
    network = networks.actor_critic(*specs, networks.Config(hidden_sizes=(8,)))

    def make_agent(numbers):
        config = from_flags.with_numbers(impala.Config(total_steps=10_000), numbers)
        agent = impala.make_agent(config, network)
        # What replay keeps is a core's own: LOCAL.
        return replay.replay(agent, replay.Config(capacity), specs[0], 4)

    return make_agent


def everyone_takes_the_next(key, scores, hyperparameters):
    parents = jnp.roll(jnp.arange(scores.shape[0]), -1)
    return parents, {name: 2 * x[parents] for name, x in hyperparameters.items()}


def arrays(tree):
    """On the host, keys as their data: `call` reuses the memory of what it is given."""
    return jax.tree.map(
        lambda x: np.array(
            jax.random.key_data(x)
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
        ),
        tree,
    )


def begun(cores, rule=everyone_takes_the_next, interval=2, make_agent=None, **more):
    """The call of a population's program, and its first state."""
    programs = population.make_programs(
        make_agent or maker(),
        Bandit(),
        parallel.make_mesh(cores),
        4,
        None,
        (rule, Updates(interval, last=100)),
    )
    keys = jax.vmap(jax.random.key)(jnp.arange(MEMBERS, dtype=jnp.uint32))
    rates = jnp.geomspace(1e-4, 1e-1, MEMBERS)
    values = {"learning_rate": rates} | more
    return programs.call, programs.start(keys, values, jnp.arange(4))


SLOW = [pytest.param(x, marks=pytest.mark.slow) for x in (1, 4, 8)]


@pytest.mark.parametrize("cores", [2, *SLOW])
def test_exploitation_by_hand_is_the_program(cores):
    """A gather of the shared halves; environments, keys and replay stay where they are."""
    call, start = begun(cores, make_agent=maker(capacity=8))
    trained, _, _ = call(start, jnp.uint32(2), jnp.bool_(True))
    before = arrays(trained)
    after, _, _ = call(trained, jnp.uint32(0), jnp.bool_(False))
    after = arrays(after)
    parents = np.roll(np.arange(MEMBERS), -1)
    learner = before.state.learner
    expected = before._replace(
        state=before.state._replace(
            learner=learner._replace(
                shared=jax.tree.map(lambda x: x[parents], learner.shared)
            )
        ),
        hyperparameters={
            "learning_rate": 2 * before.hyperparameters["learning_rate"][parents]
        },
        standing=after.standing,
    )
    jax.tree.map(np.testing.assert_array_equal, after, expected)
    np.testing.assert_array_equal(after.standing.parent, parents)
    assert not after.standing.finished.any() and not after.standing.return_sum.any()
    assert len(jax.tree.leaves(learner.local)) > 3  # replay is there to be left alone
    moved = [(x != x[parents]).any() for x in jax.tree.leaves(learner.shared)]
    assert sum(moved) > 5


@functools.cache
def trained(cores):
    """After 7 updates with an adaptation at each second, by truncation."""
    call, state = begun(cores, partial(truncation, config=FIELDS))
    for updates in (2, 2, 2, 1):
        report = jnp.bool_(updates == 2)
        state, metrics, _ = call(state, jnp.uint32(updates), report)
    return arrays(state), arrays(metrics)


@pytest.mark.parametrize("cores", [2, *SLOW[1:]])
def test_any_number_of_cores_adapts_alike(cores):
    """Who takes over whom is the same; numbers are up to a core's rounding."""
    (state, metrics), (on_one, theirs) = trained(cores), trained(1)
    for name in ("population/parent", "population/interval"):
        np.testing.assert_array_equal(metrics[name], theirs[name])
    assert (metrics["population/parent"] != NOBODY).any()
    np.testing.assert_array_equal(metrics["population/interval"], 3)
    floats = [
        (x, y)
        for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(on_one), strict=True)
    ]
    for x, y in floats:
        np.testing.assert_allclose(np.float64(x), np.float64(y), atol=1e-4)


def test_the_score_is_of_the_interval_however_it_is_divided():
    """Into reports, and into calls, of which the clock decides."""
    states = []
    for calls in ([4], [1, 3], [2, 1, 1]):
        call, state = begun(1, interval=4)
        for updates in calls:
            state, _, _ = call(
                state, jnp.uint32(updates), jnp.bool_(updates == calls[-1])
            )
        states.append(arrays(state.standing))
    jax.tree.map(np.testing.assert_array_equal, states[0], states[1])
    jax.tree.map(np.testing.assert_array_equal, states[0], states[2])
    finished, total = states[0].finished, states[0].return_sum
    # 16 timesteps in each of 4 environments: episodes of 5 steps take 6.
    np.testing.assert_array_equal(finished, 4 * (16 // 6))
    assert (np.abs(total) <= 5 * finished).all() and len({*total}) > 2


def last(iterator):
    for item in iterator:
        pass
    return item


def train(total_updates, adapt, seeds=range(4), cores=2, **more):
    rates = jnp.geomspace(1e-4, 1e-1, len(seeds))
    options = {
        "make_agent": maker(),
        "hyperparameters": {"learning_rate": rates},
    } | more
    return population.train(
        **options,
        environment=Bandit(),
        seeds=seeds,
        total_steps=16 * total_updates,
        cores=cores,
        adapt=adapt,
        **SIZES,
    )


TRUNCATION = Adaptation(partial(truncation, config=FIELDS), 16 * 5)


@pytest.mark.slow
def test_without_exploitation_each_is_as_if_the_others_were_not_there():
    """An interval as long as the run, and no rule, give the same bits."""
    never = TRUNCATION._replace(steps=16 * 10)
    (adapts, rows), (alone, _) = last(train(10, never)), last(train(10, None))
    jax.tree.map(
        np.testing.assert_array_equal, arrays(adapts.state), arrays(alone.state)
    )
    assert {row["population/parent"] for row in rows} == {NOBODY}


def test_stopped_in_mid_interval_it_resumes_to_the_same_bits(monkeypatch):
    monkeypatch.setattr(hosts, "in_a_second", lambda updates, took: 1)
    train_all = functools.partial(train, 17, TRUNCATION, updates_per_report=5)
    whole, _ = last(train_all())
    asked = iter([False] * 10)
    stopped, rows = last(train_all(stopped=lambda: next(asked, True)))
    assert 5 < int(stopped.state.updates[0]) < 10 and rows is None
    saved = [population.member(stopped, i) for i in range(4)]

    def restore(states, layout):
        assert layout.hyperparameters == layout.standing == parallel.SHARED
        return saved

    resumed, _ = last(train_all(restore=restore))
    jax.tree.map(np.testing.assert_array_equal, arrays(resumed), arrays(whole))
    assert (np.array(resumed.standing.parent) != NOBODY).any()


def breaking(numbers):
    """An agent whose parameters become NaN where `x` is positive, and its actors' with them."""
    agent = maker(capacity=8)({})

    def learner_step(key, state, trajectory):
        state, told = agent.learner_step(key, state, trajectory)
        lost = jnp.where(numbers["x"] > 0, jnp.nan, 0.0)
        state = jax.tree.map(
            lambda x: x + lost if jnp.issubdtype(x.dtype, jnp.floating) else x, state
        )
        return state, told | {"loss/total": told["loss/total"] + lost}

    return agent._replace(learner_step=learner_step)


def cured(key, scores, hyperparameters):
    parents, _ = truncation(key, scores, {}, Config())
    return parents, {"x": hyperparameters["x"][parents]}


def test_a_failed_member_that_is_replaced_is_alive_again():
    values = {"x": jnp.array([0.0, 1.0, 0.0, 0.0])}
    runs = train(
        15, Adaptation(cured, 16 * 5), make_agent=breaking, hyperparameters=values
    )
    seen = [(state, rows) for state, rows in runs if rows]
    of_second = [rows[1] for _, rows in seen]
    failed = [isinstance(row, FloatingPointError) for row in of_second]
    assert failed[0] and not any(failed[-5:])
    assert int(of_second[-1]["population/parent"]) in (0, 2, 3, NOBODY)
    state, _ = seen[-1]
    for x in jax.tree.leaves(arrays(population.member(state, 1))):
        assert np.isfinite(x).all()


def test_who_failed_begins_anew_but_for_its_learner():
    """Its environments and its replay may hold NaN."""
    call, start = begun(2, make_agent=maker(capacity=8))
    trained, _, _ = call(start, jnp.uint32(2), jnp.bool_(True))
    failed = jnp.zeros(MEMBERS, bool).at[3].set(True)
    failed = jax.device_put(failed, trained.standing.failed.sharding)
    trained = trained._replace(standing=trained.standing._replace(failed=failed))
    before = arrays(trained)
    after = arrays(call(trained, jnp.uint32(0), jnp.bool_(False))[0])
    for i in range(MEMBERS):
        old, new = (population.member(x, i) for x in (before, after))
        was_reset = i == 3
        assert (new.actors.timestep.step_type == 0).all() == was_reset
        assert (new.actors.episodes.episode_length == 0).all() == was_reset
        assert (new.learner.local.ring.filled == 0).all() == was_reset
        np.testing.assert_array_equal(new.key, old.key)
        assert not new.standing.failed


def test_a_failure_is_remembered_until_the_next_adaptation():
    standing = adaptation.initial_standing()
    nothing = {"episodes": jnp.float32(0.0), "episode_return": jnp.float32(0.0)}
    for failures, expected in ((0, False), (3, True), (0, True)):
        failures = {"loss/total": jnp.uint32(failures), "rho": jnp.uint32(0)}
        standing = adaptation.counted(standing, nothing, failures)
        assert bool(standing.failed) == expected
    scores = adaptation.scores(jax.tree.map(lambda x: x[None], standing))
    np.testing.assert_array_equal(scores, [-np.inf])


def test_a_member_that_fails_at_the_end_is_named():
    def nobody(key, scores, hyperparameters):
        return jnp.arange(4), hyperparameters

    values = {"x": jnp.array([0.0, 1.0, 0.0, 0.0])}
    with pytest.raises(
        FloatingPointError, match=r"^run 1 \(seed 1\), update \d+: loss"
    ):
        last(
            train(
                10,
                Adaptation(nobody, 16 * 5),
                make_agent=breaking,
                hyperparameters=values,
            )
        )


@pytest.mark.parametrize(
    ("interval", "total", "chosen", "reports", "adaptations"),
    [
        (5, 17, None, 1, [5, 10]),
        (5, 10, None, 1, [5]),
        (5, 19, None, 1, [5, 10]),
        (7, 700, None, 7, [*range(7, 694, 7)]),
        (8, 700, None, 4, [*range(8, 693, 8)]),
        (10, 1000, 4, 4, [*range(12, 989, 12)]),
        (2000, 1000, None, 10, []),
    ],
)
def test_each_adaptation_falls_on_a_report(
    interval, total, chosen, reports, adaptations
):
    adapt = Adaptation(truncation, interval * 16 - 3)
    found, (_, when) = population.in_step(16, 16 * total, chosen, adapt)
    assert found.updates == reports and when.interval % reports == 0
    due = [x for x in range(total + 1) if when.are_due(jnp.uint32(x))]
    assert due == adaptations
    numbers = [int(when.number(jnp.uint32(x))) for x in (1, total)]
    assert numbers == [0, len(adaptations)]


def chosen(scores, config=FIELDS, seed=0):
    rates = jnp.geomspace(1e-4, 1e-1, len(scores))
    parents, values = RULE(
        jax.random.key(seed), jnp.float32(scores), {"learning_rate": rates}, config
    )
    return np.array(parents), np.array(values["learning_rate"]), np.array(rates)


RULE = jax.jit(truncation, static_argnums=3)


def test_the_worst_draw_from_the_best():
    scores = np.random.default_rng(0).permutation(20).astype(float)
    worst, best = scores < 5, scores >= 15
    drawn = set()
    for seed in range(20):
        parents, values, rates = chosen(scores, seed=seed)
        stay = parents == np.arange(20)
        np.testing.assert_array_equal(stay, ~worst)
        assert best[parents[worst]].all()
        np.testing.assert_array_equal(values[stay], rates[stay])
        drawn |= {*parents[worst]}
        step = 1e3**FIELDS.perturbation
        factors = values[worst] / rates[parents[worst]]
        moved = np.isclose(factors, step, rtol=1e-4) | np.isclose(
            factors, 1 / step, rtol=1e-4
        )
        at_the_end = np.isclose(values[worst], 1e-1) | np.isclose(values[worst], 1e-4)
        assert (moved | at_the_end).mean() >= 0.2
        assert (values >= 1e-4 * 0.999).all() and (values <= 1e-1 * 1.001).all()
    assert len(drawn) == 5


def test_how_hyperparameters_move():
    scores = np.arange(4000.0)
    config = Config(fields=("learning-rate=1e-4..1e-1",), resample=0.3)
    parents, values, rates = chosen(scores, config)
    took = parents != np.arange(4000)
    assert took.sum() == 1000
    factors = np.log(values[took] / rates[parents[took]]) / np.log(1e3)
    # The best are at the upper end of the range, where a step up ends at its limit.
    down, up = np.isclose(factors, -0.05, atol=1e-4), values[took] > 0.0999
    up |= np.isclose(factors, 0.05, atol=1e-4)
    assert 0.3 < down.mean() < 0.4 and 0.3 < up.mean() < 0.4
    new = np.log10(values[took][~down & ~up])
    assert abs(new.mean() + 2.5) < 0.15 and 0.7 < new.std() < 1.0  # uniform in [-4, -1]


@pytest.mark.parametrize(
    ("scores", "takes", "parents"),
    [
        ([1, 2, 3, 4], [0], {3}),
        ([2, 2, 2, 2], [], set()),  # none is better
        ([np.nan, 1, 2, np.nan], [1], {2}),  # who has no score neither gives nor takes
        ([np.nan] * 4, [], set()),
        ([-np.inf, -np.inf, -np.inf, 1], [0, 1, 2], {3}),  # all that failed
        ([-np.inf, np.nan, np.nan, 1], [0], {3}),
        ([-np.inf] * 4, [], set()),
        ([-np.inf, np.nan, np.nan, np.nan], [], set()),
    ],
)
def test_who_takes_over(scores, takes, parents):
    found, _, _ = chosen(scores)
    moved = np.flatnonzero(found != np.arange(4))
    assert [*moved] == takes and {*found[moved]} <= parents


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        (lambda key, scores, x: scores, "float32[4]"),
        (lambda key, scores, x: (scores, x), "float32[4]"),
        (lambda key, scores, x: (jnp.arange(3), x), "int32[3]"),
        (lambda key, scores, x: (jnp.arange(4), {}), "{}"),
        (lambda key, scores, x: None, "None"),
    ],
)
def test_a_rule_that_gives_something_else_is_named(rule, given):
    with pytest.raises(UserError) as error:
        train(10, Adaptation(rule, 16))
    assert given in str(error.value)
    assert "it must give parents, int32 [4], and learning_rate" in str(error.value)


def flags(**fields):
    return Train(ppo.Config(), None, **fields)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: flags(population=8), "--population needs hyperparameters to adapt"),
        (lambda: flags(population=1, pbt=FIELDS), "population is 1; it must be from 2"),
        (lambda: flags(pbt=FIELDS), "--pbt.* are for a population: add --population"),
        (
            lambda: flags(population=8, seeds=2, pbt=FIELDS),
            "--population has members and schedules of its own",
        ),
        (
            lambda: Config(fields=("clip=1",)),
            "must be FIELD=LOW..HIGH, as learning-rate",
        ),
        (lambda: Config(fields=("clip=2..1",)), "LOW must be below HIGH"),
        (
            lambda: Config(fields=("clip=1..inf",)),
            "FIELD=LOW..HIGH, as learning-rate=1e-5..1e-2, of finite numbers",
        ),
        (lambda: Config(fields=("clip=1..2", "clip=1..3")), "has clip twice"),
        (lambda: Config(fraction=0.6), "pbt.fraction is 0.6; it must be from 0 to 0.5"),
        (lambda: Config(interval=0), "pbt.interval is 0; it must be at least 1"),
        (
            lambda: members.choose(
                flags(population=2, pbt=Config(fields=("epochs=1..2",)))
            ),
            "pbt.fields has epochs; it must be one of the agent's float hyperparameters",
        ),
        (
            lambda: members.choose(
                flags(population=2, pbt=Config(fields=("clip=-1..2",)))
            ),
            "pbt.fields: clip is -1.0",
        ),
        (
            lambda: adaptation.of_flags(
                flags(population=2, pbt=Config(fields=FIELDS.fields, rule="math:pi"))
            ),
            "--pbt.rule: math:pi is float; it must be a function",
        ),
    ],
)
def test_bad_input_is_one_line(make, line):
    with pytest.raises(UserError) as error:
        make()
    assert line in str(error.value) and "\n" not in str(error.value)


def test_members_begin_in_their_ranges():
    config = Config(fields=("learning-rate=1e-5..1e-1", "entropy-cost=0..2"))
    chosen = members.choose(flags(population=100, pbt=config, seed=3))
    assert [x.seed for x in chosen] == [*range(3, 103)]
    rates = [x.hyperparameters["learning_rate"] for x in chosen]
    assert np.histogram(np.log10(rates), 4, (-5, -1))[0].min() > 10
    costs = [x.hyperparameters["entropy_cost"] for x in chosen]
    assert np.histogram(costs, 4, (0, 2))[0].min() > 10
    assert chosen[1].config.agent.entropy_cost == costs[1]
    assert chosen[1].population == 100 and not chosen[1].config.together
