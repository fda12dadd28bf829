"""The command as its user meets it: real processes, signals, bad input."""

import json
import signal
import subprocess
import sys
import time

import pytest

import sebulba.__main__ as program
import sebulba.command.subcommands as command
from podracer.agents import ppo
from podracer.errors import UserError
from podracer.metrics import VOCABULARY
from sebulba import host_environments
from sebulba.command import training
from sebulba.host_environments.options import Options

SMALL = ["--env", "CartPole-v1", "--batch-size", "4", "--cores", "2"]


def start(*arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "sebulba", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Output and errors of a process, which is killed if it hangs."""
    try:
        return process.communicate(timeout=200)
    finally:
        process.kill()


def rows_of(folder):
    return [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_reports_speed_lag_and_who_waited(tmp_path):
    process = start("train", *SMALL, "--total-steps", "8000", cwd=tmp_path)
    output, error = finish(process)
    assert process.returncode == 0, error
    (folder,) = (tmp_path / "runs").iterdir()
    row = rows_of(folder)[-1]
    assert row["steps"] == 8000 and row["updates"] == 100
    assert row.keys() <= VOCABULARY.keys()
    assert {"frames_per_second", "lag_mean", "learner_waiting"} <= row.keys()
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    first, *others = rows_of(folder)
    assert first["steps_per_second"] is None  # all compilation
    assert all(0 <= row["actors_waiting"] <= 1 for row in others)
    assert "cpu cores: 1 to act, 1 to learn" in output
    assert "the learner waited" in output.splitlines()[-1]


def test_continuous_actions_of_a_simulator(tmp_path, monkeypatch):
    arguments = "--agent ppo --preset mujoco --env HalfCheetah-v4 --total-steps 4096"
    faster = "--agent.epochs 1 --agent.minibatches 2 --actor-cores 1 --learner-cores 1"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training.parallel, "use_cpu_cores", lambda *_, **__: None)
    command.train(f"{arguments} {faster} --quiet --run run".split())
    row = rows_of(tmp_path / "run")[-1]
    assert row.keys() <= {*VOCABULARY, *ppo.METRICS}
    assert row["steps"] == 4096 and row["observation_scale"] > 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    train = config["config"]["train"]
    assert (train["max_lag"], train["threads_per_core"]) == (0, 1)  # the preset's


def test_a_resumed_run_has_new_seeds_and_evaluations_have_the_same(
    tmp_path, monkeypatch
):
    made, make = [], host_environments.make

    def spied(name, batch_size, seed, *others):
        made.append((batch_size, seed))
        return make(name, batch_size, seed, *others)

    monkeypatch.setattr(host_environments, "make", spied)
    monkeypatch.setattr(training.parallel, "use_cpu_cores", lambda *_, **__: None)
    folder = tmp_path / "run"
    one = "--actor-cores 1 --learner-cores 1 --threads-per-core 1 --unroll-length 5"
    played = "--evaluate.steps 20 --evaluate.episodes 2 --quiet"
    new = f"--env CartPole-v1 --batch-size 4 {one} --total-steps 20 --run {folder}"
    command.train(f"{new} {played}".split())
    changed = "--allow-changes --total-steps 40"
    command.train(f"--resume {folder} {changed} {played}".split())
    trained = [seed for size, seed in made if size == 4]
    evaluated = [seed for size, seed in made if size == 2]
    assert len(trained) == len(evaluated) == 2
    assert abs(trained[0] - trained[1]) >= 4
    assert evaluated[0] == evaluated[1]


@pytest.mark.parametrize(
    ("number", "code"),
    [  # saved, both
        (signal.SIGTERM, 0),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_run_soon(number, code, tmp_path):
    arguments = *SMALL, "--total-steps", str(2 * 10**6), "--run", "run"
    process = start("train", *arguments, cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    try:
        # A row is a hundredth of the run: the signal comes while another is under way.
        while process.poll() is None and not (
            metrics.exists() and metrics.stat().st_size
        ):
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(timeout=300) == code  # seconds, where nothing else runs
        assert rows_of(tmp_path / "run")[-1]["steps"] < 2 * 10**6
    finally:
        process.kill()
        process.communicate()


def test_help_promises_identical_runs_in_lock_step_only(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        command.train(["--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "random seed; equal seeds give identical runs in lock-step only" in text
    assert "hyperparameters to start from, published ones or ours" in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--env", "Pongg-v5"], "did you mean 'Pong-v5'?"),
        (["--env", "jax:cach"], "did you mean 'catch'?"),
        (["--env", "catch"], "a JAX environment; in Sebulba it is --env jax:catch"),
        (
            ["--checkpoint.steps", "0"],
            "error: checkpoint: steps is 0; it must be at lea",
        ),
        (["--interface.scale-observations"], "observation_spec has bounds"),
        (["--actor-cores", "9"], "actor_cores is 9"),
        (["--cores", "9"], "cores is 9; it must be from 1 to 8"),
        (["--cores", "4", "--actor-cores", "4"], "but this host has 4 to use"),
        (["--batch-size", "7", "--updates-per-trajectory", "2"], "batch_size is 7"),
        (["--late", "never"], "--late"),
        (["--env", "Pong-v5", "--env.frame-skip", "0"], "frame_skip is 0"),
        (["--env", "Pong-v5", "--env.sticky", "1"], "--env.sticky-actions"),
        (["--max-lag", "-1"], "max_lag is -1"),
        (["--env-threads", "-1"], "env_threads is -1"),
        (["--env-threads", "0"], "env_threads is 0"),
        (
            ["--env-threads", "100000"],
            "env_threads is 100000; it must be from 1 to 1024",
        ),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--threads-per-core", "0"], "threads_per_core is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--seed", str(2**64)], "seed is 18446744073709551616"),
        (["--updates-per-trajectory", "0"], "updates_per_trajectory is 0"),
        (["--evaluate.steps", "0"], "evaluate.steps is 0"),
        (["--resume", ""], "--resume is empty"),
        (["--run", ""], "--run is empty"),
        (["--batch-size", str(10**9)], "needs at least"),
        (["--run", "/proc/nowhere"], "/proc/nowhere: cannot write"),
        (
            ["--env", "gym:CartPole-v1", "--env.arguments", '{"nope": 1}'],
            "unexpected keyword argument 'nope'",
        ),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments, line, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sebulba", "train", "--quiet", *arguments])
    monkeypatch.setattr(training.parallel, "use_cpu_cores", lambda *_, **__: None)
    with pytest.raises(SystemExit) as stop:
        program.main()
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert line in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_images_of_gymnasiums_environments_may_be_stacked():
    config = command.Train(ppo.Config(), Options(frame_stack=3))
    assert training.frame_stack(config) == 3
    with pytest.raises(UserError, match="frame_stack is 0; it must be at least 1"):
        Options(frame_stack=0)
