"""A run that is killed goes on: in lock-step as if nothing had happened."""

import json
import random

import pytest

from tests.interruptions import assert_equal, ended, final, run_with_kills, start

LOCK_STEP = (
    *("--env=jax:catch", "--batch-size=8", "--unroll-length=5", "--seed=3"),
    *("--cores=2", "--threads-per-core=1", "--max-lag=0", "--checkpoint.minutes=0"),
    *("--network.hidden-sizes", "16", "--total-steps=20000"),
)
FREE = (
    *("--env=CartPole-v1", "--batch-size=8", "--unroll-length=5", "--cores=2"),
    *("--network.hidden-sizes", "16", "--total-steps=40000", "--checkpoint.minutes=0"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in lock-step that nothing interrupts."""
    folder, said = tmp_path_factory.mktemp("whole") / "run", "said"
    how = "train", *LOCK_STEP, f"--run={folder}"
    process = start("sebulba", *how, output=folder.parent / said)
    assert ended(process) == 0, (folder.parent / said).read_text()
    return folder


def test_killed_at_5_moments_lock_step_ends_as_if_never(tmp_path, whole):
    chance = random.Random(0)
    moments = [chance.uniform(0.0, 0.7) for _ in range(5)]
    left = run_with_kills(tmp_path / "run", "sebulba", *LOCK_STEP, moments=moments)
    assert not left
    assert_equal(tmp_path / "run", whole)


def test_killed_in_mid_run_simulators_begin_anew_and_all_steps_are_done(tmp_path):
    folder = tmp_path / "run"
    assert not run_with_kills(folder, "sebulba", *FREE, moments=[0.2])
    updates, _ = final(folder)
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert updates == rows[-1]["updates"] == 1_000
    assert [row["steps"] for row in rows] == [*range(400, 40_001, 400)]
