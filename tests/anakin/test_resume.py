"""A run that its machine interrupts resumes as if nothing had happened."""

import random
import shutil
import signal
import sys
import time

import pytest

import anakin.__main__ as program
import anakin.command.subcommands as command
from podracer.runs import run_folder
from tests.interruptions import (
    assert_equal,
    checkpoints,
    ended,
    final,
    interrupted,
    rows,
    run_with_kills,
    size,
    start,
)

UPDATES, STEPS = 300, 76_800
ARGUMENTS = (
    *("--env=catch", "--preset=small", "--batch-size=32", "--unroll-length=8"),
    *("--network.hidden-sizes", "16", "--cores=2", "--updates-per-report=20"),
    *(
        f"--total-steps={STEPS}",
        "--checkpoint.steps=12_800",
    ),  # a quarter of a second each
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    how = "train", *ARGUMENTS, f"--run={folder / 'run'}"
    assert ended(start("anakin", *how, output=folder / "said")) == 0, (
        folder / "said"
    ).read_text()
    assert final(folder / "run")[0] == UPDATES
    return folder / "run"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_any_moments_it_ends_as_if_never(tmp_path, whole, count):
    chance, number = random.Random(0), 0
    moments = [chance.uniform(0.0, 0.3) for _ in range(count)]
    while moments:
        folder = tmp_path / str(number)
        moments = run_with_kills(folder, "anakin", *ARGUMENTS, moments=moments)
        assert_equal(folder, whole)
        number += 1


def stopped(folder, how, seconds):
    """The exit code after SIGTERM."""
    return interrupted(folder, "anakin", *how, seconds=seconds, number=signal.SIGTERM)


def test_a_terminated_run_saves_and_ends_well(tmp_path, whole):
    folder = tmp_path / "run"
    how = ["train", *ARGUMENTS, "--checkpoint.steps=100000000", f"--run={folder}"]
    started = time.monotonic()
    assert stopped(folder, how, 0.0) == 0
    assert time.monotonic() - started < 300 and len(checkpoints(folder)) == 1
    assert int(*checkpoints(folder)) < UPDATES
    assert (
        ended(start("anakin", "train", f"--resume={folder}", output=tmp_path / "said"))
        == 0
    )
    assert_equal(folder, whole)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path, whole):
    folder, said = tmp_path / "run", tmp_path / "said"
    how = ["train", *ARGUMENTS, f"--run={folder}"]
    assert stopped(folder, how, 0.1) == 0
    before, most = checkpoints(folder), size(folder / "metrics.jsonl") + 99
    code = ended(
        start("anakin", "train", f"--resume={folder}", output=said, most_bytes=most)
    )
    assert code == 2
    line = said.read_text().splitlines()[-1]
    assert str(folder) in line and "cannot write" in line
    assert before <= checkpoints(folder)
    assert ended(start("anakin", "train", f"--resume={folder}", output=said)) == 0
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
        (["--allow-changes", "--seed=3"], "random state that came from seed 0: leave"),
        (["--run=elsewhere"], "--resume continues in the run's own folder"),
    ],
)
def test_another_configuration_is_refused(whole, flags, line, monkeypatch, capsys):
    before = sorted(whole.glob("**/*"))
    monkeypatch.setattr(sys, "argv", ["anakin", "train", f"--resume={whole}", *flags])
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    with pytest.raises(SystemExit) as stop:
        program.main()
    said = capsys.readouterr()
    (text,) = said.err.splitlines()
    assert stop.value.code == 2 and line in text
    assert sorted(whole.glob("**/*")) == before


@pytest.mark.slow
def test_a_run_goes_on_for_longer_if_asked(tmp_path, whole):
    folder, said = tmp_path / "run", tmp_path / "said"
    shutil.copytree(whole, folder)
    how = [f"--resume={folder}", "--allow-changes", f"--total-steps={STEPS + 2560}"]
    assert ended(start("anakin", "train", *how, output=said)) == 0
    assert rows(folder)[-1]["steps"] == STEPS + 2560
    assert ended(start("anakin", "train", f"--resume={folder}", output=said)) == 0
    assert "nothing was left to do" in said.read_text()


def test_a_run_that_is_being_written_is_left_alone(tmp_path, whole):
    folder, said = tmp_path / "run", tmp_path / "said"
    shutil.copytree(whole, folder)
    with run_folder.held(folder):
        assert ended(start("anakin", "train", f"--resume={folder}", output=said)) == 2
    assert "another process is writing this run" in said.read_text()
