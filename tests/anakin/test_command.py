"""The command as its user meets it: real processes, bad input, what is left behind."""

import json
import subprocess
import sys

import pytest

import anakin.__main__ as command
from podracer.metrics import VOCABULARY

SMALL = ["--total-steps", "20000", "--network.hidden-sizes", "8", "--cores", "2"]


def run(*arguments, cwd):
    """The command in a process of its own, killed if it hangs."""
    return subprocess.run(
        [sys.executable, "-m", "anakin", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_run_leaves_its_configuration_metrics_and_curve(tmp_path):
    done = run("train", "--env", "catch", "--env.rows", "5", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    config = json.loads((folder / "config.json").read_text())["config"]
    assert (config["agent"], config["env"]) == ("impala", "catch")
    assert config["train"]["env"] == {"rows": 5, "columns": 5}
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["steps"] == 20 * 1024 and rows[-1]["updates"] == 20
    assert rows[-1].keys() <= VOCABULARY.keys()
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert str(folder.name) in done.stdout and "return" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["trian"], "no such command: 'trian'; did you mean 'train'?"),
        (["train", "--agent", "impola"], "did you mean 'impala'?"),
        (["train", "--env", "cartpool"], "did you mean 'cartpole'?"),
        (["train", "--preset", "torchbeats"], "did you mean 'torchbeast'?"),
        (["train", "--batch-sise", "8"], "did you mean '--batch-size'?"),
        (
            ["train", "--agent.learning-rat", "1"],
            "did you mean '--agent.learning-rate'?",
        ),
        (["train", "--batch-size", "many"], "--batch-size"),
        (["train", "--batch-size", "9", "--cores", "2"], "choose a multiple of 2"),
        (["train", "--unroll-length", "0"], "unroll_length is 0"),
        (["train", "--env.rows", "0"], "rows"),
        (["train", "--network.torso", "minatar"], "minatar"),
        (["train", "--agent.discount-factor", "1.5"], "discount_factor is 1.5"),
        (["train", "--agent.learning-rate", "nan"], "learning_rate is nan"),
        (["train", "--network.hidden-sizes", "0"], "hidden_sizes"),
        (["train", "--agent", "ppo", "--agent.minibatches", "7"], "minibatches is 7"),
        (["train", "--interface.normalize-rewards", "--env", "pendulom"], "pendulum"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments, line, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["anakin", *arguments])
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    with pytest.raises(SystemExit) as stop:
        command.main()
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert line in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())  # nothing half-written


def test_a_folder_that_holds_a_run_is_kept(tmp_path):
    first = run("train", *SMALL, "--run", "here", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    before = (tmp_path / "here" / "metrics.jsonl").read_bytes()
    second = run("train", *SMALL, "--run", "here", cwd=tmp_path)
    assert second.returncode == 2
    assert "--overwrite" in second.stderr and second.stderr.count("\n") == 1
    assert (tmp_path / "here" / "metrics.jsonl").read_bytes() == before


def test_a_run_that_is_no_longer_finite_stops_and_says_so(tmp_path):
    options = ["--agent.learning-rate", "1e30", "--agent.no-decay-learning-rate"]
    done = run("train", *SMALL, *options, "--updates-per-report", "1", cwd=tmp_path)
    assert done.returncode == 1
    last_line = done.stderr.splitlines()[-1]
    assert "update" in last_line and "not finite" in last_line
    (folder,) = (tmp_path / "runs").iterdir()
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows and all(row["loss/total"] is not None for row in rows)
