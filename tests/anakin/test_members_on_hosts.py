"""Runs of one program on several hosts: as on one, each recorded by the host that has it."""

import fnmatch
import json
import os
import signal

import numpy as np
import pytest

from podracer.metrics import last
from podracer.runs import run_folder
from tests import interruptions, many_hosts
from tests.anakin.test_many_hosts import HEARTBEAT

STEPS = 6_400  # of 4 environments x 8 steps: 200 updates
RUN = (
    *("anakin", "train", "--env", "catch", "--preset", "small", "--batch-size", "4"),
    *("--unroll-length", "8", "--network.hidden-sizes", "8"),
    *("--total-steps", str(STEPS), "--updates-per-report", "20"),
    *("--checkpoint.steps", "1600"),
)
POPULATION = (
    *("--population", "4", "--pbt.interval", "1280"),
    *("--pbt.fields", "learning-rate=1e-4..1e-1"),
)
MEMBERS = [f"member-{i}" for i in range(4)]


def train(folder, *flags, count, **options):
    each = [(*RUN, *flags)] * count
    return many_hosts.start(folder, many_hosts.command, each, **options)


def resume(folder, count, **options):
    each = [("anakin", "train", "--resume", "run", "--cores", "2")] * count
    return many_hosts.start(folder, many_hosts.command, each, **options)


def ended(folder, processes):
    assert {*many_hosts.codes(processes)} == {0}, many_hosts.said(folder, 0)


def one_host(folder, *flags):
    """The folder of the runs on one host with all cores."""
    ended(folder, train(folder, *flags, "--run", "one", "--cores", "4", count=1))
    return folder / "one"


def until_all_save(folder, names, processes):
    interruptions.until(
        lambda: (
            all(interruptions.checkpoints(folder / x) for x in names)
            or processes[0].exitcode is not None
        )
    )


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_population_is_that_of_one_host_though_a_host_is_killed(tmp_path):
    """In the same bits: members, what they took over, and what the first host says."""
    whole, run = one_host(tmp_path, *POPULATION), tmp_path / "run"
    summary = many_hosts.said(tmp_path, 0).splitlines()[-2:]
    assert summary[0].startswith("best: member-"), summary
    flags = (*POPULATION, "--run", "run", "--cores", "2")
    processes = train(tmp_path, *flags, count=2, heartbeat=HEARTBEAT)
    until_all_save(run, MEMBERS, processes)
    processes[1].kill()
    ends = many_hosts.codes(processes)
    assert ends[1] == -signal.SIGKILL and ends[0] not in (0, None)
    ended(tmp_path, resume(tmp_path, count=2))
    for name in MEMBERS:
        interruptions.assert_equal(run / name, whole / name)
        parents = [x["population/parent"] for x in interruptions.rows(run / name)]
        assert len(parents) == STEPS // 32 // 20
    every = [x for name in MEMBERS for x in interruptions.rows(run / name)]
    assert any(x["population/parent"] >= 0 for x in every)
    assert many_hosts.said(tmp_path, 0).splitlines()[-2:] == summary
    assert "best" not in many_hosts.said(tmp_path, 1)
    names = {x.name for x in run.iterdir()}
    names -= {*fnmatch.filter(names, ".writing-*")}  # what the killed host had begun
    assert names == {*MEMBERS, "curve.png", run_folder.TOGETHER, run_folder.HOSTS}


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_runs_are_those_of_one_host_and_stop_at_the_same_update(tmp_path):
    """Seeds with swept values, of which a signal to any host stops all."""
    flags = "--seeds", "2", "--sweep", "learning-rate=1e-3,3e-3"
    whole, run = one_host(tmp_path, *flags), tmp_path / "run"
    names = sorted(x.name for x in whole.iterdir() if x.is_dir())
    assert len(names) == 4
    processes = train(tmp_path, *flags, "--run", "run", "--cores", "2", count=2)
    until_all_save(run, names, processes)
    os.kill(processes[1].pid, signal.SIGTERM)
    ended(tmp_path, processes)
    stopped = {interruptions.final(run / x)[0] for x in names}
    assert len(stopped) == 1 and stopped.pop() < STEPS // 32
    ended(tmp_path, resume(tmp_path, count=2))
    for name in names:
        (_, mine), (_, theirs) = map(interruptions.final, (run / name, whole / name))
        for x, y in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.core
def test_who_fails_on_one_host_costs_no_run_of_another(tmp_path):
    """All hosts name it, and end with its exit code when the others are saved."""
    flags = "--sweep", "learning-rate=1e-3,1e30", "--agent.no-decay-learning-rate"
    processes = train(tmp_path, *flags, "--run", "run", "--cores", "1", count=2)
    assert many_hosts.codes(processes) == [1, 1], many_hosts.said(tmp_path, 0)
    good, failed = (
        tmp_path / "run" / f"learning-rate-{x}-seed-0" for x in ("0.001", "1e+30")
    )
    assert last(good / "metrics.jsonl")["steps"] == STEPS
    assert interruptions.final(good)[0] == STEPS // 32
    states = [json.loads((x / "state.json").read_text()) for x in (good, failed)]
    assert [x["state"] for x in states] == ["finished", "failed"]
    for number in range(2):
        assert f"{failed}: " in many_hosts.said(tmp_path, number)


def test_members_that_hosts_cannot_share_are_refused(tmp_path):
    flags = (*POPULATION, "--population", "3", "--run", "run", "--cores", "1")
    processes = train(tmp_path, *flags, count=2)
    codes = many_hosts.codes(processes)
    # JAX aborts a host whose coordinator has ended before it, on a busy machine.
    assert codes[0] == 2 and codes[1] in (2, -6)
    line = (
        "population are 3 runs, which 2 cores cannot share equally: choose a multiple"
    )
    assert any(line in many_hosts.said(tmp_path, i) for i in range(2))
    assert not (tmp_path / "run").exists()
