"""The command as its user meets it: real processes, bad input, what is left behind."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import anakin.__main__ as program
import anakin.command.subcommands as command
import anakin.population
from podracer.errors import UserError
from podracer.metrics import VOCABULARY, Recent
from podracer.runs import run_folder

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


def fails(arguments, monkeypatch):
    """The exit code of the command in this process."""
    monkeypatch.setattr(sys, "argv", ["anakin", *arguments])
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    with pytest.raises(SystemExit) as stop:
        program.main()
    return stop.value.code


def test_a_run_leaves_its_configuration_metrics_and_curve_and_is_kept(
    tmp_path, monkeypatch, capsys
):
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

    before = (folder / "metrics.jsonl").read_bytes()
    assert fails(["train", *SMALL, "--run", str(folder)], monkeypatch) == 2
    error = capsys.readouterr().err
    assert "--overwrite" in error and error.count("\n") == 1
    assert (folder / "metrics.jsonl").read_bytes() == before


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
        (["train", "--resume", ""], "--resume is empty"),
        (["train", "--resume="], "--resume is empty"),
        (["train", "--run", ""], "--run is empty"),
        (["train", "--run="], "--run is empty"),
        (["train", "--config", ""], "--config is empty"),
        (["evaluate", ""], "an argument is empty"),
        (["render", ""], "an argument is empty"),
        (["evaluate", "missing"], "missing/config.json: No such file"),
        (["evaluate", "x", "--max-steps", "3000000000"], "max_steps is 3000000000"),
        (["evaluate", "x", "--episodes", "3000000000"], "episodes is 3000000000"),
        (["evaluate", "x", "--seed", "-1"], "seed is -1; it must be from 0"),
        (["evaluate", "x", "--seed", str(10**20)], f"seed is {10**20}; it must"),
        (["render", "x", "--seed", str(10**20)], f"seed is {10**20}; it must"),
        (
            ["render", "x", "--max-steps", str(10**20)],
            f"max_steps is {10**20}; it must",
        ),
        (["train", "--evaluate.episodes", "3000000000"], "episodes is 3000000000"),
        (["train", "--evaluate.steps", "0"], "evaluate.steps is 0"),
        (["train", "--seed", str(2**64)], "seed is 18446744073709551616; it must be"),
        (["train", "--seed", "-1"], "seed is -1; it must be from 0"),
        (["train", "--seed", str(2**32 - 1), "--seeds", "2"], "to 4294967296; it must"),
        (["train", "--updates-per-report", "0"], "updates_per_report is 0"),
        (["train", "--reset-pool", "0"], "reset_pool is 0"),
        (["train", "--reset-pool", str(10**12)], "00; it must be from 1 to"),
        (["train", "--run", "a\udcff"], "its path is not valid UTF-8; choose another"),
        (["train", "--total-steps", "0"], "total_steps is 0"),
        (["train", "--batch-size", "400000000"], "needs at least"),
        (["train", "--batch-size", str(10**30)], "needs at least"),
        (["train", "--unroll-length", str(10**12)], "a shorter unroll_length"),
        (["train", "--run", "/proc/nowhere"], "/proc/nowhere: cannot write"),
        (["train", "--stop-at", "nan"], "stop_at is nan"),
        (
            ["train", "--seeds", "2", "--stop-at", "1"],
            "--stop-at and --profile are for",
        ),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments, line, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    # Whatever is wrong here is said before anything is compiled.
    monkeypatch.setattr(anakin.reports, "iterate", None)
    assert fails(arguments, monkeypatch) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())  # nothing half-written


def test_an_environment_that_changes_the_directory_moves_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    (tmp_path / "elsewhere").mkdir()
    environment = [
        "--env",
        "tests.environments:Wanderer",
        "--env.place",
        str(tmp_path / "elsewhere"),
    ]
    small = ["--total-steps", "1000", "--network.hidden-sizes", "4", "--cores", "1"]
    command.train([*environment, *small, "--quiet", "--run", "runs/mine"])
    assert Path.cwd() == tmp_path / "elsewhere" and not [*Path.cwd().iterdir()]
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"config.json", "checkpoints", "curve.png"} <= {
        *map(str, os.listdir(folder))
    }


@pytest.mark.parametrize("flags", [[], ["--seeds", "2"], ["--overwrite"]])
def test_a_folder_that_cannot_be_written_is_refused_before_compilation(
    flags, tmp_path, monkeypatch
):
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    for module in (anakin.training, anakin.population):
        monkeypatch.setattr(module, "make_programs", None)
    (tmp_path / "file").touch()
    for place, line in {
        "file": "file.*: cannot write: Not a directory",
        "file/run": "file/run.*: cannot write: Not a directory",
        "held": "held.*: another process is writing this run",
    }.items():
        where = tmp_path / place / ("seed-0" if "--seeds" in flags else "")
        with contextlib.ExitStack() as stack:
            if place == "held":
                where.mkdir(parents=True)
                stack.enter_context(run_folder.held(where))
            with pytest.raises(UserError, match=line):
                command.train([*SMALL, "--run", str(tmp_path / place), *flags])


def test_a_run_ends_early_at_a_return_and_leaves_a_profile(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    flags = ["--updates-per-report", "1", "--stop-at", "-0.5", "--profile"]
    steps = ["--total-steps", "1000000", "--run", "run"]
    command.train([*SMALL, *steps, *flags])
    rows = [json.loads(x) for x in Path("run/metrics.jsonl").read_text().splitlines()]
    assert Recent(rows).has_reached(-0.5) and not Recent(rows[:-1]).has_reached(-0.5)
    assert rows[-1]["steps"] < 1_000_000
    said = capsys.readouterr().out
    assert "stopped early: mean return" in said and "has reached -0.5" in said
    assert list((tmp_path / "run" / "profile").glob("**/*.trace.json.gz"))
    assert f"profile: open {tmp_path}/run/profile" in said


def test_a_run_that_is_no_longer_finite_stops_and_says_so(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    options = ["--agent.learning-rate", "1e30", "--agent.no-decay-learning-rate"]
    arguments = ["train", *SMALL, *options, "--updates-per-report", "1"]
    assert fails(arguments, monkeypatch) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert "update" in last_line and "not finite" in last_line
    (folder,) = (tmp_path / "runs").iterdir()
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows and all(row["loss/total"] is not None for row in rows)
