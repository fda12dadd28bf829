"""The command on several hosts: one run, which ends and resumes as a whole."""

import os
import random
import signal
import time

import numpy as np
import pytest

from podracer.metrics import last
from podracer.parallel import hosts
from tests import interruptions, many_hosts

STEPS = 12_800  # of 4 environments x 8 steps: 400 updates
RUN = (
    *("anakin", "train", "--env", "catch", "--preset", "small", "--cores", "1"),
    *("--batch-size", "4", "--unroll-length", "8", "--network.hidden-sizes", "8"),
    *("--total-steps", str(STEPS), "--updates-per-report", "40"),
    *("--checkpoint.steps", "2000"),
)
HEARTBEAT = 5  # seconds, where a host is killed
NOTICE = 90  # seconds for its end to be noticed on a slow machine: JAX's own take 100


def train(folder, *more, count=2, **options):
    """The hosts of a new run, or a resumed one."""
    how = (*RUN, *more) if "--resume" not in more else ("anakin", "train", *more)
    return many_hosts.start(folder, many_hosts.command, [how] * count, **options)


def where(run):
    """The flags that resume a run, if it has a checkpoint."""
    if interruptions.checkpoints(run):
        return "--resume", "run"
    return "--run", "run", "--overwrite"


def until_it_trains(folder, processes):
    interruptions.until(
        lambda: "compiled" in many_hosts.said(folder, 0) or not processes[0].is_alive()
    )


def until_it_saves(run, processes):
    before = interruptions.checkpoints(run)
    interruptions.until(
        lambda: interruptions.checkpoints(run) - before or not processes[0].is_alive()
    )


def is_whole(run):
    return last(run / "metrics.jsonl")["steps"] == STEPS and any(
        str(STEPS // 32) == name for name in interruptions.checkpoints(run)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two hosts that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert many_hosts.codes(train(folder, "--run", "run")) == [0, 0]
    return folder / "run"


def test_the_first_host_keeps_the_run(whole):
    first, second = (many_hosts.said(whole.parent, i) for i in (0, 1))
    assert "mean return" in first and "mean return" not in second
    assert last(whole / "metrics.jsonl")["steps"] == STEPS


@pytest.mark.slow
def test_a_host_killed_at_any_moment_costs_nothing(whole, tmp_path):
    """All end in time; the resumed run ends in the same bits."""
    moments, run, killed = random.Random(0), tmp_path / "run", 0
    for number in range(6):
        processes = train(tmp_path, *where(run), heartbeat=HEARTBEAT)
        until_it_trains(tmp_path, processes)
        if number % 4 > 1:  # the others may come before anything is saved
            until_it_saves(run, processes)
        time.sleep(moments.uniform(0.0, 0.3))
        processes[number % 2].kill()
        started = time.monotonic()
        ends = many_hosts.codes(processes)
        assert time.monotonic() - started < NOTICE
        # 0 is for a run that is whole: killed too late, when both had ended.
        assert 0 not in ends or is_whole(run), many_hosts.said(tmp_path, 0)
        killed += ends[number % 2] == -signal.SIGKILL
    assert killed > 3 and interruptions.checkpoints(run)
    assert many_hosts.codes(train(tmp_path, *where(run))) == [0, 0]
    interruptions.assert_equal(run, whole)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_hosts(whole, tmp_path):
    """With two cores on one host as with one on each of two, to rounding."""
    processes = train(tmp_path, "--run", "run")
    until_it_trains(tmp_path, processes)
    os.kill(
        processes[1].pid, signal.SIGTERM
    )  # one host gets the signal, all save and exit with 0
    assert many_hosts.codes(processes) == [0, 0]
    assert last(tmp_path / "run" / "metrics.jsonl")["steps"] < STEPS
    resumed = train(tmp_path, "--resume", "run", "--cores", "2", count=1)
    assert many_hosts.codes(resumed) == [0], many_hosts.said(tmp_path, 0)
    (_, mine), (_, theirs) = map(interruptions.final, (tmp_path / "run", whole))
    for x, y in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_hosts_with_other_numbers_are_refused(tmp_path):
    each = [(*RUN, "--agent.discount-factor", x) for x in ("0.9", "0.8")]
    processes = many_hosts.start(tmp_path, many_hosts.command, each)
    assert many_hosts.codes(processes) == [2, 2]
    line = (
        "hosts 0 and 1 were started with different settings: agent.discount_factor 0.9"
    )
    assert all(f"{line} and 0.8" in many_hosts.said(tmp_path, i) for i in (0, 1))
    assert not (tmp_path / "runs").exists()


def test_hosts_that_know_of_other_numbers_of_hosts_are_refused(tmp_path):
    each = [[2], [3]]
    assert many_hosts.codes(many_hosts.start(tmp_path, with_hosts, each)) == [2, 2]
    assert "different settings: hosts 2 and 3" in many_hosts.said(tmp_path, 0)


def with_hosts(count):
    from podracer import command

    os.environ["JAX_NUM_PROCESSES"] = str(count)
    with command.exits("test"):
        hosts.initialize()
        hosts.check_same({"jax": "1.2.3"})


def test_hosts_with_other_numbers_of_cores_are_refused(tmp_path):
    each = [[i + 1] for i in range(2)]
    assert many_hosts.codes(many_hosts.start(tmp_path, with_cores, each)) == [2, 2]
    assert "host 1 has 2 cores and host 0 has 1" in many_hosts.said(tmp_path, 0)


def with_cores(count):
    from podracer import command, parallel

    with command.exits("test"):
        hosts.initialize()
        parallel.use_cpu_cores(count)
        parallel.make_mesh()


def test_a_folder_that_is_not_shared_is_refused(tmp_path):
    each = [(tmp_path / str(i),) for i in range(2)]
    assert many_hosts.codes(many_hosts.start(tmp_path, elsewhere, each)) == [2, 2]
    assert "host 1 does not see" in many_hosts.said(tmp_path, 0)


def elsewhere(folder):
    from podracer import command
    from podracer.runs import run_folder

    folder.mkdir()
    run_folder.SEEN_SECONDS = 1.0
    with command.exits("test"):
        hosts.initialize()
        run_folder.check_shared(folder)
        hosts.agree(1, False)


@pytest.mark.parametrize(
    ("how", "line", "ends"),
    [
        ("raises", "ZeroDivisionError", [1, 1]),
        ("stalls", "host 1 has made no progress for 5 s", [1, 1]),
        ("raises at its end", "ZeroDivisionError", [1, 1]),
        ("is late at its end", "", [0, 0]),
    ],
)
def test_a_host_that_fails_ends_all_in_time(tmp_path, how, line, ends):
    processes = many_hosts.start(
        tmp_path,
        fails,
        [["continues", "end" in how], [how.removesuffix(" at its end"), "end" in how]],
        PODRACER_STALL_SECONDS="5" if how == "stalls" else "60",
    )
    assert many_hosts.codes(processes) == ends
    assert line in many_hosts.said(tmp_path, 0)
    assert line in many_hosts.said(tmp_path, 1)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_host_that_is_gone_ends_all_but_never_with_0(tmp_path, at_the_end):
    """It is stopped, so that its connections stay: only its heartbeat is missing."""
    each = [["continues", at_the_end], ["stops", at_the_end]]
    processes = many_hosts.start(tmp_path, fails, each, heartbeat=HEARTBEAT)
    processes[0].join(many_hosts.MOST_SECONDS)
    os.kill(processes[1].pid, signal.SIGKILL)  # it lies still, and hears no other
    assert processes[0].exitcode not in (None, 0)


def fails(how, at_the_end):
    """What a host does wrong in the middle, or after the last exchange with the others."""
    hosts.initialize()
    ways = {
        "raises": lambda: 1 / 0,
        "stalls": lambda: time.sleep(1_000),
        "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "is late": lambda: time.sleep(8),
        "continues": lambda: None,
    }
    for asked in range(5 if at_the_end else 1_000):
        if asked == 4 and not at_the_end:
            ways[how]()
        hosts.agree(1, False)
        time.sleep(0.05)
    ways[how]()
