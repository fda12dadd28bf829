"""The meta-gradient is exact; lifetimes are independent; a run resumes bit for bit."""

import contextlib
import functools
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from anakin import meta_gradient
from anakin.acting import initial_actors, unroll
from anakin.command import meta_train
from anakin.meta import bandit, hidden_value, lifetimes, lpg
from envs_jax import batched
from envs_jax.lpg import TaskDistribution
from podracer import networks, parallel
from podracer.agent import Trajectory
from podracer.agents import lpg as agent
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.errors import UserError
from podracer.metrics import VOCABULARY
from podracer.rules.lpg import Sizes
from podracer.runs import run_folder
from tests import interruptions

SIZES = Sizes(prediction_size=3, memory_size=4, embedding_size=2)
CONFIG = lpg.Config(
    batch_size=2, unroll_length=6, length=8, learning_rates=(1.0, 3.0), alpha_y=(0.5,)
)
TASKS = TaskDistribution(("chain-short", "chain-long"))
META = lpg.make_meta(CONFIG, TASKS, SIZES)


def begin(weights, index, key=1):
    arms = bandit.initial_state(2, 2)
    args = META.life, weights, jax.random.key(key), jnp.int32(index), arms
    return lifetimes.begin(*args)


@contextlib.contextmanager
def float64():
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


@functools.cache
def first_of_float64():
    """A rule's weights as a vector, the function that makes weights of it, a lifetime."""

    @jax.jit
    def start():
        weights = META.init(jax.random.key(0))
        weights = jax.tree.map(lambda x: x.astype(jnp.float64), weights)
        many = jax.vmap(begin, (None, 0))(weights, jnp.arange(256))
        # The shortest chain: its states recur, so that an update changes the next's inputs.
        shortest = jnp.argmin(many.task.length)
        return weights, jax.tree.map(lambda x: x[shortest], many)

    weights, lifetime = start()
    vector, unravel = ravel_pytree(weights)
    return np.asarray(vector), unravel, lifetime


LONGER = pytest.param(5, marks=pytest.mark.slow)  # 3 again, at greater length


@pytest.mark.parametrize("updates", [1, 3, LONGER])
def test_the_meta_gradient_is_exact(updates):
    """Against finite differences; they move the agents a little and none of their actions,
    so that trajectories are constants, and the rule's inputs are not."""
    with float64():
        flat, unravel, lifetime = first_of_float64()
        assert lifetime.task.length <= CONFIG.unroll_length
        live = functools.partial(meta_gradient.live, META, updates)

        def objective(flat):
            return live(unravel(flat), lifetime)[0]

        function = jax.jit(jax.value_and_grad(objective))
        gradient = function(flat)[1]
        assert gradient.dtype == jnp.float64
        for direction in np.random.default_rng(2).normal(size=(3, *flat.shape)):
            direction /= np.linalg.norm(direction)
            high, low = (function(flat + x * direction)[0] for x in (1e-5, -1e-5))
            slope = (high - low) / 2e-5
            np.testing.assert_allclose(gradient @ direction, slope, rtol=1e-4)


def test_the_hidden_value_function_learns():
    """Its loss falls on what it is trained on, and the rule's agent is as without it."""

    @jax.jit
    def learn():
        weights = META.init(jax.random.key(0))
        plain = META.life.make_agent(weights, {"learning_rate": 1.0, "alpha_y": 0.5})
        both = hidden_value.beside(plain, META.life.value)
        state = both.initial_learner_state(jax.random.key(0))
        trajectory = trajectory_of(plain, begin(weights, 0))

        def update(value, _):
            value, metrics = META.life.value.update(value, trajectory)
            return value, metrics["loss/value"]

        _, losses = jax.lax.scan(update, state.shared.value, length=50)
        key = jax.random.key(1)
        after, _ = both.learner_step(key, state, trajectory)
        alone, _ = plain.learner_step(key, hidden_value.inner_state(state), trajectory)
        return losses, after, alone

    losses, after, alone = learn()
    assert losses[-1] < 0.5 * losses[0]
    for x, y in zip(
        jax.tree.leaves(hidden_value.inner_state(after)),
        jax.tree.leaves(alone),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)


def trajectory_of(agent, lifetime):
    """60 steps of a lifetime's first agent, which reach the ends of episodes."""
    environment = batched(TASKS.environment(lifetime.task))
    params = agent.actor_params(agent.initial_learner_state(jax.random.key(0)))
    actors = initial_actors(jax.random.key(0), jnp.arange(2), agent, environment)
    key = jax.random.key(1)
    return unroll(agent.actor_step, params, environment, 60, actors, key)[1]


def test_the_value_function_of_features_learns():
    tasks = TaskDistribution(("chain-distractor",))
    spec = tasks.observation_spec()
    value = hidden_value.make_value(
        spec, networks.Config(torso="mlp", hidden_sizes=(8,)), 0.01, 0.9
    )

    @jax.jit
    def learn():
        task = tasks.sample(jax.random.key(0))
        steps = jax.vmap(tasks.environment(task).initial_state)
        _, timestep = steps(jax.random.split(jax.random.key(0), 4))
        timesteps = jax.tree.map(lambda x: jnp.stack([x, x, x]), timestep)
        timesteps = timesteps._replace(
            step_type=jnp.ones((3, 4), jnp.int32), reward=jnp.ones((3, 4))
        )
        trajectory = Trajectory(timesteps, (), ())

        def update(state, _):
            state, metrics = value.update(state, trajectory)
            return state, metrics["loss/value"]

        state = value.init(jax.random.key(0))
        state, losses = jax.lax.scan(update, state, length=30)
        return value.values(state, trajectory), losses

    values, losses = learn()
    assert values.shape == (3, 4)
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_population_is_its_lifetimes_alone():
    """So are its gradient, and what becomes of each lifetime."""
    weights = META.init(jax.random.key(0))
    live = functools.partial(meta_gradient.live, META, 2)
    begun = jax.jit(jax.vmap(begin, (None, 0)))(weights, jnp.arange(3))

    @jax.jit
    def together(weights):
        objective, (lived, _) = jax.vmap(live, (None, 0))(weights, begun)
        return jnp.mean(objective), lived

    @jax.jit
    def alone(weights, lifetime):
        objective, (lived, _) = live(weights, lifetime)
        return objective, lived

    gradients, lived = jax.grad(together, has_aux=True)(weights)
    singles = []
    for i in range(3):
        one = jax.tree.map(lambda x, i=i: x[i], begun)
        gradient, mine = jax.grad(alone, has_aux=True)(weights, one)
        singles.append(gradient)
        compare(mine, jax.tree.map(lambda x, i=i: x[i], lived))
    compare(gradients, jax.tree.map(lambda *x: sum(x) / 3, *singles))


def compare(mine, theirs, atol=1e-6):
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        np.testing.assert_allclose(
            np.asarray(x, "f8"), np.asarray(y, "f8"), rtol=1e-4, atol=atol
        )


def test_an_update_of_the_rule_is_traced_once(programs_of_a_run):
    traced = []

    def predict(*args):
        traced.append(args)
        return META.predict(*args)

    config = meta_gradient.Config(lifetimes=2, updates=2)
    meta = META._replace(predict=predict)
    programs = programs_of_a_run(meta, config, parallel.make_mesh(1))
    state = jax.eval_shape(programs.start, jax.random.key(0), jnp.arange(2))
    programs.call.trace(state, jnp.uint32(1), jnp.bool_(True))
    assert len(traced) == 1


@pytest.fixture(autouse=True, scope="module")
def programs_of_a_run():
    """All runs are of the same rule: on as many cores they are compiled once."""
    make_programs = meta_gradient.make_programs

    @functools.cache
    def of_cores(config, mesh):
        return make_programs(META, config, mesh)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_gradient, "make_programs", lambda _, *args: of_cores(*args))
        yield make_programs


RUN = {"total_steps": 8 * 36 * 5, "updates_per_report": 2}


def train(cores, **options):
    config = meta_gradient.Config(lifetimes=8, updates=2, learning_rate=1e-2)
    return meta_gradient.train(META, config, cores=cores, **RUN | options)


@pytest.fixture(scope="module")
def whole():
    """Five updates of the rule on two cores: states and metrics at each report."""
    return [(jax.device_get(data(state)), row) for state, row in train(2)]


def data(state):
    """Arrays that can leave the cores before the next update reuses their memory."""

    def leaf(x):
        key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if key else x

    return jax.tree.map(leaf, state)


@pytest.mark.slow
def test_lifetimes_are_of_all_ages_and_are_reborn(whole):
    state, row = whole[-1]
    assert row["updates"] == 5 and row["steps"] == RUN["total_steps"]
    assert row["meta/ended"] > 0 and {*state.lifetimes.births.tolist()} > {1}
    assert len({*state.lifetimes.run.updates.tolist()}) > 1
    assert state.arms.count.sum() == (state.lifetimes.births - 1).clip(0).sum()
    assert (state.lifetimes.run.updates < CONFIG.length).all()
    assert row.keys() <= VOCABULARY.keys() | agent.METRICS
    first = whole[0][0]
    moved = jax.tree.map(lambda a, b: abs(a - b).max(), first.weights, state.weights)
    assert max(jax.tree.leaves(moved)) > 0.01  # Adam's steps are about the rate


SLOW = [pytest.param(cores, marks=pytest.mark.slow) for cores in (1, 4)]


@pytest.mark.parametrize("cores", [*SLOW, 8])
def test_cores_do_not_matter(cores, whole):
    for (state, row), (expected, other) in zip(train(cores), whole, strict=True):
        state = jax.device_get(data(state))
        compare(state.weights, expected.weights, 1e-4)
        compare(state.lifetimes.births, expected.lifetimes.births)
        compare(state.arms, expected.arms, 1e-4)
        for name in ("episodes", "reward", "meta/objective"):
            np.testing.assert_allclose(row[name], other[name], atol=1e-3)


def test_a_restored_run_continues_bit_for_bit(tmp_path, whole):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(*next(train(2)))
    with Checkpoints(tmp_path) as checkpoints:
        resumed = list(train(2, restore=checkpoints.restore))
        state = jax.device_get(data(resumed[-1][0]))
    assert len(resumed) == 2
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(whole[-1][0]), strict=True):
        np.testing.assert_array_equal(x, y)


def test_cores_that_cannot_share_the_lifetimes_are_refused():
    with pytest.raises(UserError, match="lifetimes are 8 runs, which 3 cores cannot"):
        train(3)


def test_the_bandit():
    record, arms = jax.jit(bandit.record), bandit.initial_state(2, 3)
    np.testing.assert_allclose(bandit.logits(arms, 0), bandit.logits(arms, 1))
    family = jnp.zeros(24, jnp.int32)
    arm = jnp.arange(24) % 2
    rewards = jnp.where(arm == 0, 2.0, jnp.arange(24.0) / 100)
    arms = record(arms, family, arm, rewards, jnp.arange(24) < 23)
    np.testing.assert_array_equal(arms.count, [[12, 11, 0], [0, 0, 0]])
    np.testing.assert_array_equal(arms.returns[0, 0], np.full(10, 2.0))
    # 11 lifetimes of arm 1: the first of them is forgotten.
    np.testing.assert_allclose(
        sorted(arms.returns[0, 1]), np.arange(3, 23, 2) / 100, rtol=1e-6
    )
    means = np.array([2.0, np.arange(3, 23, 2).mean() / 100, 0.0])
    bonus = 0.2 / np.sqrt([12, 11, 0.01])
    np.testing.assert_allclose(
        bandit.logits(arms, 0), (means / 2 + bonus) / 0.1, rtol=1e-5
    )
    again = record(arms, family, arm, rewards * 0, jnp.arange(24) < 0)
    np.testing.assert_array_equal(again.returns, arms.returns)


FLAGS = (
    *("--families", "chain-short", "--lifetimes=4", "--updates=2", "--cores=2"),
    *("--rule.prediction-size=3", "--rule.memory-size=4", "--rule.embedding-size=2"),
    *("--life.batch-size=2", "--life.unroll-length=4", "--life.length=6"),
    *("--updates-per-report=20", f"--total-steps={96 * 400}"),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_is_killed_and_resumed_and_leaves_the_same_rule(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    how = "meta-train", *FLAGS, f"--run={whole}"
    said = tmp_path / "said"
    assert interruptions.ended(interruptions.start("anakin", *how, output=said)) == 0
    assert "rule in" in said.read_text()
    interruptions.run_with_kills(
        killed,
        "anakin",
        *FLAGS,
        "--checkpoint.steps=2000",
        moments=[0.1, 0.2],
        verb="meta-train",
    )
    interruptions.assert_equal(killed, whole)
    rules = [(x / run_folder.RULE).read_bytes() for x in (whole, killed)]
    assert rules[0] == rules[1]
    sizes, weights = agent.read_rule(agent.Config(update_rule=whole / run_folder.RULE))
    assert sizes == SIZES and weights["params"]["pi_hat"]["kernel"].shape == (4, 1)
    rows = [json.loads(x) for x in (whole / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1].keys() <= VOCABULARY.keys() | agent.METRICS


class Rule(NamedTuple):
    """In place of the state of meta-training."""

    weights: dict[str, jax.Array]
    updates: jax.Array


def trained(*_, total_steps, restore, **__):
    """In place of meta-training: one update, or none where the run is resumed."""
    state = Rule({"w": jnp.full(3, 1.0 - bool(restore))}, jnp.uint32(1 - bool(restore)))
    layout = Rule(parallel.SHARED, parallel.SHARED)
    state = restore(state, layout) if restore else state
    row = {"steps": total_steps, "updates": 1, "episode_return": 0.0}
    row |= {"steps_per_second": 1.0, "seconds": 1.0, "compile_seconds": 1.0}
    yields = [] if restore else [(state, row)]
    return (x for x in yields)


def test_a_finished_run_that_is_resumed_has_its_rule(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parallel, "use_cpu_cores", lambda *_, **__: None)
    monkeypatch.setattr(meta_gradient, "train", trained)
    meta_train.main([*FLAGS, f"--run={tmp_path}"])
    file = tmp_path / "rule.safetensors"
    before = file.read_bytes()
    file.unlink()
    meta_train.main([f"--resume={tmp_path}"])
    assert file.read_bytes() == before
    assert capsys.readouterr().out.endswith(f"nothing was left to do\nrule in {file}\n")


def test_the_default_is_for_a_laptop_and_the_papers_scale_a_preset():
    laptop, paper, other = (
        meta_train.configure(flags)
        for flags in ([], ["--preset=paper"], ["--preset=paper", "--lifetimes=2"])
    )
    assert (laptop.meta.lifetimes, laptop.rule.memory_size) == (32, 32)
    assert (paper.meta.lifetimes, paper.rule, paper.life) == (
        960,
        Sizes(),
        lpg.Config(),
    )
    assert (other.meta.lifetimes, other.life) == (2, lpg.Config())


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--families", "grid-dense"], "families are grid-dense; known: grid-tabular"),
        (["--lifetimes", "0"], "lifetimes is 0; it must be at least 1"),
        (["--updates", "0"], "updates is 0"),
        (["--life.learning-rates"], "learning_rates is empty"),
        (["--life.alpha-y", "-1"], "alpha_y[0] is -1.0; it must be at least 0"),
        (
            ["--objective.trace-decay", "2"],
            "trace_decay is 2.0; it must be from 0 to 1",
        ),
        (["--evaluate.steps", "5"], "evaluate.steps is for agents"),
        (["--lifetime", "4"], "no such flag; did you mean '--lifetimes'?"),
        (["--resume", "nowhere"], "nowhere"),
        (["--preset", "large"], "--preset: unknown name 'large'; known: paper, small"),
        (["--resume", "nowhere", "--preset", "paper"], "leave the flag out"),
    ],
)
def test_bad_input_is_one_line(flags, line):
    done = [*FLAGS, *flags]
    with pytest.raises(UserError) as error:
        meta_train.main(done)
    assert line in str(error.value) and "\n" not in str(error.value)
