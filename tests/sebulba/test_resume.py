"""A killed run resumes: in lock-step as if nothing had happened."""

import functools
import itertools
import random
import signal

import jax
import numpy as np
import pytest

from podracer import networks
from podracer.agents import impala
from podracer.checkpoints.checkpoint import Checkpoints
from sebulba import cores, host_environments, training
from tests.interruptions import (
    assert_equal,
    checkpoints,
    ended,
    final,
    rows,
    run_with_kills,
    start,
    until,
    without_times,
)

LOCK_STEP = (
    *("--env=jax:catch", "--batch-size=8", "--unroll-length=5", "--seed=3"),
    *("--cores=2", "--threads-per-core=1", "--max-lag=0", "--checkpoint.steps=1000"),
    *("--network.hidden-sizes", "16", "--total-steps=4000"),
)
FREE = (
    *("--env=CartPole-v1", "--batch-size=8", "--unroll-length=5", "--cores=2"),
    *("--network.hidden-sizes", "16", "--total-steps=12000"),
    "--checkpoint.steps=1000",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in lock-step that nothing interrupts."""
    folder, said = tmp_path_factory.mktemp("whole") / "run", "said"
    how = "train", *LOCK_STEP, f"--run={folder}"
    process = start("sebulba", *how, output=folder.parent / said)
    assert ended(process) == 0, (folder.parent / said).read_text()
    return folder


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_at_moments_lock_step_ends_as_if_never(tmp_path, whole, count):
    chance, number = random.Random(0), 0
    moments = [chance.uniform(0.0, 0.3) for _ in range(count)]
    while moments:  # a fast computer ends a run before all of them
        folder = tmp_path / str(number)
        moments = run_with_kills(folder, "sebulba", *LOCK_STEP, moments=moments)
        assert_equal(folder, whole)
        number += 1


def test_killed_in_mid_run_simulators_begin_anew_and_all_steps_are_done(tmp_path):
    folder, said = tmp_path / "run", tmp_path / "said"
    process = start("sebulba", "train", *FREE, f"--run={folder}", output=said)
    until(lambda: process.exitcode is not None or checkpoints(folder))
    process.kill()
    assert ended(process) == -signal.SIGKILL, said.read_text()
    assert rows(folder)[-1]["updates"] < 300
    how = "train", f"--resume={folder}"
    assert ended(start("sebulba", *how, output=said)) == 0, said.read_text()
    assert final(folder)[0] == 300
    assert [row["steps"] for row in rows(folder)] == [40, 80, *range(120, 12_001, 120)]


LAST = 20  # trajectories


def make_environment(thread):
    options = host_environments.default_options("jax:catch")
    return host_environments.make("jax:catch", 8, thread, 1, options)


@functools.cache
def make_agent():
    example = make_environment(0)
    network = networks.actor_critic(
        example.observation_spec(),
        example.action_spec(),
        networks.Config(hidden_sizes=(8,)),
    )
    return impala.make_agent(impala.Config(), network)


def trained(folder, *stops, **options):
    """Rows and the last state of a run, stopped after so many trajectories and resumed.

    Two updates a trajectory, on two learner cores.
    """
    rows_of_run = []
    for stop in (*stops, LAST):
        learned = itertools.count(1)
        with Checkpoints(folder) as checkpoints:
            for state, row in training.train(
                make_agent(),
                make_environment,
                unroll_length=3,
                cores=cores.split(jax.devices()[:3], 1, 2),
                updates_per_trajectory=2,
                trajectories_per_report=6,
                restore=checkpoints.restore if folder.exists() else None,
                stopped=lambda: next(learned) >= stop,  # noqa: B023 called in the loop
                **{"threads_per_core": 1, "max_lag": 0, "total_steps": 24 * LAST}
                | options,
            ):
                rows_of_run += [without_times(row)] if row else []
            checkpoints.save(state, row)
    return rows_of_run, state


@pytest.mark.core
def test_stopped_between_reports_lock_step_ends_as_if_never(tmp_path):
    rows_of_run, state = trained(tmp_path / "whole")
    others, other = trained(tmp_path / "parts", 8)
    assert str(others) == str(rows_of_run) and len(rows_of_run) == 4
    for x, y in zip(*map(jax.tree.leaves, (other, state)), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        np.testing.assert_array_equal(x, y)


def test_into_lock_step_the_learner_goes_on_and_the_actor_begins_anew(tmp_path):
    _, before = trained(tmp_path / "run", threads_per_core=2, total_steps=24 * 7)
    assert before.actor == before.counted == ()
    rows_of_run, after = trained(tmp_path / "run")
    assert [row["updates"] for row in rows_of_run] == [24, 36, 40]
    assert int(after.actor.steps[0]) == 3 * (LAST - 7)
