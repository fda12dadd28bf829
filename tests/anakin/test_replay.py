"""Replay on many cores: each has a ring of its own, and all learn the same."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anakin
import anakin.command.subcommands as command
from anakin import population, training
from envs_jax import Batched, Catch, auto_reset
from podracer import networks, parallel
from podracer.agents import algorithm, from_flags, impala
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.trained import loading
from podracer.transformations import Interface
from podracer.transformations.replay import Config
from podracer.transformations.replay import replay as replaying

BATCH, LENGTH = 8, 3


UNIFORM = Config(32, minimum_fill=16)
PRIORITIZED = Config(32, 2.0, 16, fresh=False, updates=2, priority=0.6)


def weighing(agent):
    """An agent to which a trajectory's rewards count by its weight, and matter by their sum."""

    def weighted_step(key, learner_state, trajectory, weight):
        timesteps = trajectory.timesteps
        weighted = timesteps._replace(reward=timesteps.reward * weight[None])
        batch = trajectory._replace(timesteps=weighted)
        learner_state, metrics = agent.learner_step(key, learner_state, batch)
        return learner_state, metrics, jnp.abs(timesteps.reward).sum(axis=0)

    return agent._replace(weighted_step=weighted_step)


@functools.cache
def make_agent(replay):
    catch = Catch()
    if replay.priority:
        agent = weighing(make_agent(Config()))
        return replaying(agent, replay, catch.observation_spec(), LENGTH)
    return from_flags.make_agent(
        from_flags.Parts(
            algorithm.of(impala),
            impala.Config(),
            networks.Config(hidden_sizes=(8,)),
            catch.observation_spec(),
            catch.action_spec(),
            Interface(normalize_observations=True),
            replay=replay,
            unroll_length=LENGTH,
        )
    )


def states(cores, replay):
    """The states after single updates."""
    agent, environment = make_agent(replay), Batched(auto_reset(Catch()))
    mesh = parallel.make_mesh(cores)
    start = parallel.over_cores(
        lambda key, index: training.initial_state(key, index, agent, environment),
        mesh,
        (parallel.SHARED, parallel.BATCH),
        training.LAYOUT,
    )
    unit = training.make_step(agent, environment, LENGTH)
    step = parallel.over_cores(
        lambda state: unit(state)[0], mesh, (training.LAYOUT,), training.LAYOUT
    )
    state = start(jax.random.key(0), jnp.arange(BATCH))
    while True:
        state = jax.block_until_ready(step(state))
        yield state.learner


def observations(ring):
    """What the rings of all cores hold together [updates, batch, T + 1, ...]."""
    kept = np.moveaxis(np.asarray(ring.trajectories.timesteps.observation), 1, 2)
    cores, slots = kept.shape[:2]
    of_updates = kept.reshape(cores, -1, BATCH // cores, *kept.shape[2:])
    assert of_updates.shape[1] == cores * slots // BATCH
    return np.concatenate(of_updates, axis=1)


def test_cores_keep_what_one_would_and_learn_the_same():
    """Until something is learned; after that each core draws its own samples."""
    replay = Config(4 * BATCH, minimum_fill=4 * BATCH)
    whole = [*itertools.islice(states(1, replay), 3)][-1].local.ring
    assert {*observations(whole).flat} == {0, 1}  # not normalized
    cores = 4  # of two environments each
    *_, before, _, after = itertools.islice(states(cores, replay), 5)
    ring = before.local.ring
    assert ring.filled.tolist() == cores * [3 * BATCH // cores]
    np.testing.assert_array_equal(observations(ring), observations(whole))

    assert int(after.shared.agent.updates) == 2
    for leaf in jax.tree.leaves(after.shared):
        copies = [np.asarray(x.data) for x in leaf.addressable_shards]
        assert all((x == copies[0]).all() for x in copies)
    kept = np.asarray(after.local.ring.trajectories.timesteps.observation)
    assert not any((x == y).all() for x, y in itertools.combinations(kept, 2))


def run(folder, replay, *stops, cores=2):
    """The last state and all rows of a run that is stopped and resumed."""
    told = []
    for stop in stops:
        with Checkpoints(folder) as checkpoints:
            for state, row in anakin.train(
                make_agent(replay),
                Catch(),
                batch_size=BATCH,
                unroll_length=LENGTH,
                total_steps=stop * BATCH * LENGTH,
                updates_per_report=2,
                cores=cores,
                restore=checkpoints.restore if folder.exists() else None,
            ):
                told.append({x: row[x] for x in row if "second" not in x})
            checkpoints.save(state, row)
    return state, told


@pytest.mark.parametrize(
    "replay",
    [  # a state with priorities holds the other one
        pytest.param(UNIFORM, id="uniform", marks=pytest.mark.slow),
        pytest.param(PRIORITIZED, id="priority"),
    ],
)
def test_it_resumes_bit_for_bit_and_on_other_cores_with_empty_rings(
    replay, tmp_path, capsys
):
    whole, rows = run(tmp_path / "whole", replay, 8)
    assert [row["trained"] for row in rows] == [0.5, 1.0, 1.0, 1.0]
    state, others = run(tmp_path / "parts", replay, 4, 8)
    assert str(others) == str(rows)
    for x, y in zip(*map(jax.tree.leaves, (state, whole)), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        np.testing.assert_array_equal(x, y)
    assert "starts empty" not in capsys.readouterr().out
    if replay.priority:
        first, second = np.asarray(state.learner.local.masses)
        assert (first[:16] > 0).all() and (first != second).any()
        assert len({*first[:16]}) > 1

    state, rows = run(tmp_path / "parts", replay, 10, cores=4)
    said = capsys.readouterr().out
    assert said.count("(replay, waiting episodes) starts empty") == 1
    assert [row["trained"] for row in rows] == [0.5]  # its rings fill again
    assert state.learner.local.ring.filled.tolist() == 4 * [2 * BATCH // 4]
    if replay.priority:
        in_use = np.count_nonzero(state.learner.local.masses, axis=1)
        assert in_use.tolist() == 4 * [2 * BATCH // 4]


@pytest.mark.slow
def test_a_run_with_replay_is_loaded_without(tmp_path, monkeypatch, capsys):
    folder, sizes = tmp_path / "run", "--batch-size 8 --unroll-length 3 --cores 2"
    flags = f"--env catch {sizes} --network.hidden-sizes 8 --total-steps 240"
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    command.train([*flags.split(), "--replay.capacity=64", f"--run={folder}"])
    said = "replay: 64 trajectories of 896 bytes, 28 KiB on each of 2 learner cores\n"
    assert said in capsys.readouterr().out
    file = folder / "config.json"
    description = json.loads(file.read_text())
    assert description["config"]["train"]["replay"]["capacity"] == 64
    loaded = loading.restore(folder)
    assert (
        jax.eval_shape(loaded.agent.initial_learner_state, jax.random.key(0)).local
        == ()
    )
    del description["config"]["train"]["replay"]  # as before there was replay
    file.write_text(json.dumps(description))
    for x, y in zip(
        *(jax.tree.leaves(a.params) for a in (loading.restore(folder), loaded)),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("priority", [0.0, 0.6])
def test_runs_side_by_side_are_those_that_they_would_be_alone(priority):
    options = {"batch_size": BATCH, "unroll_length": LENGTH, "total_steps": 24 * 6}
    options |= {"updates_per_report": 6}
    replay = Config(2 * BATCH, minimum_fill=2 * BATCH, priority=priority)
    many = population.train(
        lambda numbers: make_agent(replay), Catch(), seeds=[5, 6], cores=2, **options
    )
    members, rows = list(many)[-1]
    alone = anakin.train(make_agent(replay), Catch(), seed=6, cores=1, **options)
    state, row = list(alone)[-1]
    member = population.member(members, 1)
    for x, y in zip(
        *map(jax.tree.leaves, (member.learner, state.learner)), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert rows[1]["trained"] == row["trained"] == pytest.approx(5 / 6)
