"""Several runs of one command, one after another."""

from types import SimpleNamespace

import pytest

import sebulba.command.subcommands as command
from podracer.errors import UserError
from podracer.runs import run_folder
from tests.interruptions import ended, lines, rows, size, start, until

SEEDS = (
    *("--env=jax:catch", "--batch-size=8", "--unroll-length=5", "--seeds=2"),
    *("--cores=2", "--threads-per-core=1", "--max-lag=0", "--seed=3"),
    *("--network.hidden-sizes", "16", "--total-steps=8000"),  # seconds, to stop it in
)


@pytest.mark.slow
def test_stopped_in_the_first_run_they_resume_as_if_never(tmp_path):
    """In lock-step, so that both folders have the same rows."""
    whole, stopped, said = tmp_path / "whole", tmp_path / "stopped", tmp_path / "said"
    process = start("sebulba", "train", *SEEDS, f"--run={whole}", output=said)
    assert ended(process) == 0, said.read_text()
    assert lines(said)[-5].split() == ["run", "seed", "steps", "return", "state"]
    process = start("sebulba", "train", *SEEDS, f"--run={stopped}", output=said)
    until(
        lambda: process.exitcode is not None or size(stopped / "seed-3/metrics.jsonl")
    )
    process.terminate()
    assert ended(process) == 0, said.read_text()
    states = {run_folder.load_state(stopped / "seed-3")["state"]}
    assert states < {"finished", "stopped"} and not (stopped / "seed-4").exists()
    assert lines(said)[-3].endswith("not started")
    how = "train", f"--resume={stopped}"
    assert ended(start("sebulba", *how, output=said)) == 0, said.read_text()
    for name in ("seed-3", "seed-4"):
        assert rows(stopped / name) == rows(whole / name)
    assert rows(whole / "seed-3") != rows(whole / "seed-4")


def test_several_hosts_train_one_run(monkeypatch):
    monkeypatch.setattr(command, "hosts", SimpleNamespace(number_of=lambda: 2))
    with pytest.raises(UserError, match="--seeds is for one process"):
        command.train(["--env", "jax:catch", "--seeds", "2"])


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--seeds", "0"], "seeds is 0; it must be from 1 to 65536"),
        (["--seed", str(2**32 - 1), "--seeds", "2"], "to 4294967296; it must"),
    ],
)
def test_bad_input_is_one_line(flags, line):
    with pytest.raises(UserError, match=line):
        command.train(["--env", "jax:catch", *flags])
