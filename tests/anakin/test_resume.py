"""A run that its machine interrupts goes on as if nothing had happened."""

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time

import jax
import numpy as np
import pytest

from podracer import run_folder
from podracer.checkpoint import Checkpoints

UPDATES, STEPS = 1_000, 256_000
ARGUMENTS = (
    *("--env=catch", "--preset=small", "--batch-size=32", "--unroll-length=8"),
    *("--network.hidden-sizes", "16", "--cores=2", "--updates-per-report=10"),
    *(f"--total-steps={STEPS}", "--checkpoint.steps=5000"),  # every 20 updates
)
LIMIT = 120.0  # seconds for any process
TIMES = ("seconds", "steps_per_second", "compile_seconds")

# Each process is a fresh one, forked from one that has imported everything.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["anakin.__main__", "orbax.checkpoint"])


def command(arguments, output, most_bytes=None):
    """What a process does: the command, with what it says in a file."""
    from anakin.__main__ import main

    sys.argv = ["anakin", *arguments]
    file = open(output, "w")  # noqa: SIM115 it is open until the process ends
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file.fileno(), stream.fileno())
    if most_bytes:  # in a file, as if the disk were full
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    main()


def start(*arguments, output, **options):
    """The process of a command."""
    process = processes.Process(
        target=command, args=(arguments, output), kwargs=options
    )
    process.start()
    return process


def ended(process):
    """Its exit code."""
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        raise AssertionError("it hangs")
    return process.exitcode


def until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def rows(folder):
    """The metrics, but for times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {name: x for name, x in json.loads(line).items() if name not in TIMES}
        for line in lines
    ]


def final(folder):
    """The arrays of the last checkpoint."""
    from orbax import checkpoint

    newest = next(Checkpoints(folder / "checkpoints").good())
    assert newest == UPDATES
    path = (folder / "checkpoints" / str(newest) / "state").absolute()
    state = checkpoint.StandardCheckpointer().restore(path)
    return [
        np.asarray(
            jax.random.key_data(x)
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
        )
        for x in jax.tree.leaves(state)
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    how = "train", *ARGUMENTS, f"--run={folder / 'run'}"
    assert ended(start(*how, output=folder / "said")) == 0, (
        folder / "said"
    ).read_text()
    return folder / "run"


def assert_equal(folder, whole):
    for x, y in zip(final(folder), final(whole), strict=True):
        np.testing.assert_array_equal(x, y)
    assert rows(folder) == rows(whole)


def interrupted(folder, how, seconds, number=signal.SIGKILL):
    """The exit code of a process that is ended so long after it began to train."""
    said = folder.parent / "said"
    process = start(*how, output=said)
    metrics = folder / "metrics.jsonl"
    before = size(metrics)
    until(lambda: process.exitcode is not None or size(metrics) > before)
    process.join(seconds)
    if process.is_alive():
        os.kill(process.pid, number)
    return ended(process)


def size(path):
    return path.stat().st_size if path.exists() else 0


def checkpoints(folder):
    return {
        path.name for path in folder.glob("checkpoints/[0-9]*") if path.name.isdigit()
    }


@pytest.mark.timeout(600)
def test_killed_at_20_moments_it_ends_as_if_never(tmp_path, whole):
    folder, chance, killed, number = tmp_path / "0", random.Random(0), 0, 0
    while True:
        fresh = [*ARGUMENTS, f"--run={folder}", "--overwrite"]
        how = [f"--resume={folder}"] if checkpoints(folder) else fresh
        if killed < 20:
            code = interrupted(folder, ["train", *how], chance.uniform(0.0, 0.5))
        else:
            code = ended(start("train", *how, output=tmp_path / "said"))
        assert code in (0, -signal.SIGKILL), (tmp_path / "said").read_text()
        killed += code == -signal.SIGKILL
        if code == 0:
            assert_equal(folder, whole)
            number += 1
            if killed == 20:
                break
            folder = tmp_path / str(number)


def test_a_terminated_run_saves_and_ends_well(tmp_path, whole):
    folder = tmp_path / "run"
    how = ["train", *ARGUMENTS, "--checkpoint.steps=100000000", f"--run={folder}"]
    started = time.monotonic()
    assert interrupted(folder, how, 0.0, signal.SIGTERM) == 0
    assert time.monotonic() - started < 30 and len(checkpoints(folder)) == 1
    assert int(*checkpoints(folder)) < UPDATES
    assert ended(start("train", f"--resume={folder}", output=tmp_path / "said")) == 0
    assert_equal(folder, whole)


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path, whole):
    folder, said = tmp_path / "run", tmp_path / "said"
    how = ["train", *ARGUMENTS, f"--run={folder}"]
    assert interrupted(folder, how, 0.3, signal.SIGTERM) == 0
    before, most = checkpoints(folder), size(folder / "metrics.jsonl") + 99
    code = ended(start("train", f"--resume={folder}", output=said, most_bytes=most))
    assert code == 2
    line = said.read_text().splitlines()[-1]
    assert str(folder) in line and "cannot write" in line
    assert before <= checkpoints(folder)
    assert ended(start("train", f"--resume={folder}", output=said)) == 0
    assert_equal(folder, whole)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--agent=ppo"], "--agent is ppo, but"),
        (["--preset=small"], "--preset is small, but"),
        (["--unroll-length=4"], "its configuration differs: unroll_length: 8 -> 4"),
        (
            ["--agent.learning-rate=1", "--seed=3", "--cores=1"],
            "agent.learning_rate: 0.002 -> 1.0; seed: 0 -> 3; leave the flags out",
        ),
        (
            ["--allow-changes", "--batch-size=64"],
            "is (32,) in the checkpoint and (64,)",
        ),
        (["--run=elsewhere"], "--resume goes on in the run's own folder"),
    ],
)
def test_another_configuration_is_refused(tmp_path, whole, flags, line):
    before = sorted(whole.glob("**/*"))
    code = ended(start("train", f"--resume={whole}", *flags, output=tmp_path / "said"))
    text = (tmp_path / "said").read_text()
    assert code == 2 and line in text and text.count("\n") == 1
    assert sorted(whole.glob("**/*")) == before


def test_a_run_goes_on_for_longer_if_asked(tmp_path, whole):
    folder, said = tmp_path / "run", tmp_path / "said"
    shutil.copytree(whole, folder)
    how = [f"--resume={folder}", "--allow-changes", f"--total-steps={STEPS + 2560}"]
    assert ended(start("train", *how, output=said)) == 0
    assert rows(folder)[-1]["steps"] == STEPS + 2560
    assert ended(start("train", f"--resume={folder}", output=said)) == 0
    assert "nothing was left to do" in said.read_text()


def test_a_run_that_is_being_written_is_left_alone(tmp_path, whole):
    folder, said = tmp_path / "run", tmp_path / "said"
    shutil.copytree(whole, folder)
    with run_folder.held(folder):
        assert ended(start("train", f"--resume={folder}", output=said)) == 2
    assert "another process is writing this run" in said.read_text()
