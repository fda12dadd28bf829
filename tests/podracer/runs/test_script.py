"""`podracer.record`: a script's run has what a command's run has, with a user's own code."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

import anakin
import anakin.command.subcommands as anakin_command
import envs_jax
import podracer
import podracer.__main__ as command
import sebulba
from podracer import metrics
from podracer.errors import UserError
from podracer.runs import run_folder
from sebulba import cores
from tests import own_code
from tests.environments import HostCounter
from tests.interruptions import assert_equal, checkpoints, rows, size
from tests.own_code import OPTIONS, Sides, make_agent

LIMIT = 240.0  # seconds for any process
TIMES = 100  # reports of OPTIONS


@pytest.fixture(scope="module")
def agent():
    return make_agent()


def recorded(agent, folder, **options):
    return podracer.record(
        anakin.train,
        agent,
        Sides(),
        run=folder,
        **{"quiet": True, "checkpoint_steps": 200} | OPTIONS | options,
    )


def train(agent, folder, **options):
    return [row for _, row in recorded(agent, folder, **options)]


@pytest.fixture(scope="module")
def whole(agent, tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert len(train(agent, folder)) == TIMES / 5
    return folder


def script(folder, *arguments):
    """A user's script, in a folder of its own."""
    shutil.copy(own_code.__file__, folder / "mine.py")
    with open(folder / "said", "w") as said:
        return subprocess.Popen(
            [sys.executable, "mine.py", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.getcwd()},
            stdout=said,
            stderr=said,
        )


def ended(process):
    try:
        return process.wait(LIMIT)
    finally:
        process.kill()
        process.wait()


def test_a_run_in_another_thread(agent, tmp_path):
    """As an agent of Weights & Biases runs it: there are no signals, all else is there."""
    before = signal.getsignal(signal.SIGTERM)

    def ends_early():
        for _, row in recorded(agent, tmp_path / "run", quiet=False):
            if row is not None:
                rows_before.append(row)
                break

    rows_before: list = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ends_early).result(LIMIT)
        rest = pool.submit(train, agent, tmp_path / "run", resume=True).result(LIMIT)
    assert len(rows_before) + len(rest) == TIMES / 5
    assert run_folder.load_state(tmp_path / "run")["state"] == "finished"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.timeout(900)
def test_the_whole_way_of_a_script(tmp_path, agent, whole, capsys, monkeypatch):
    run = tmp_path / "runs" / "mine"
    process, deadline = script(tmp_path, "runs/mine", "0.2"), time.monotonic() + LIMIT
    try:
        while not checkpoints(run) or size(run / "metrics.jsonl") < 1_000:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finally:
        assert ended(process) == -signal.SIGKILL
    assert run_folder.load_state(run)["state"] == "stopped"
    assert 0 < len(rows(run)) < TIMES / 5
    assert ended(script(tmp_path, "runs/mine")) == 0, (tmp_path / "said").read_text()
    assert "compiled in" in (tmp_path / "said").read_text()
    assert_equal(run, whole)
    assert run_folder.load_state(run)["state"] == "finished"

    act = podracer.load(run, agent=agent)
    assert act(np.array([0.9])) == 1 and act(np.array([-0.9])) == 0
    found = anakin.evaluate(agent, act.params, Sides(), episodes=5)
    assert found.episode_return.mean() > 8

    monkeypatch.chdir(tmp_path)
    command.list_runs([])
    (_, line) = capsys.readouterr().out.splitlines()
    assert line.split()[:5] == ["finished", "agent", "sides", "0", "4k"]
    assert line.endswith("  runs/mine")
    command.plot(["runs", "--out", "curves.png"])
    assert "drawn in curves.png" in capsys.readouterr().out
    assert Path("curves.png").exists() and (run / "curve.png").exists()


def test_without_its_agent_a_scripts_run_is_one_line(whole, agent):
    with pytest.raises(UserError, match=r"give the agent .* podracer.load\(RUN, agent"):
        podracer.load(whole)
    for called in (anakin_command.evaluate, anakin_command.render):
        with pytest.raises(UserError, match="recorded by the script .* not by anakin"):
            called([f"{whole}"])
    with pytest.raises(UserError, match="recorded by the script .* not by anakin"):
        anakin_command.train(["--resume", f"{whole}"])
    other = agent._replace(
        initial_learner_state=lambda key: agent.initial_learner_state(key)._replace(
            shared={"weight": jax.numpy.zeros((1, 3)), "bias": jax.numpy.zeros(3)}
        )
    )
    with pytest.raises(UserError, match=r"is \(2,\) in the checkpoint and \(3,\) here"):
        podracer.load(whole, agent=other)


def test_a_break_saves_and_the_same_call_continues(tmp_path, agent, whole):
    for _, row in recorded(agent, tmp_path / "run", checkpoint_steps=None):
        if row["steps"] >= 1_000:
            break
    assert checkpoints(tmp_path / "run") == {"25"}
    assert run_folder.load_state(tmp_path / "run")["state"] == "stopped"
    assert not run_folder.is_held(tmp_path / "run")
    assert train(agent, tmp_path / "run", resume=True)[0]["steps"] == 1_200
    assert_equal(tmp_path / "run", whole)


def test_an_error_in_the_loop_leaves_a_run_to_resume(tmp_path, agent, whole):
    with pytest.raises(ZeroDivisionError):
        for _, row in recorded(agent, tmp_path / "run"):
            row["steps"] / (row["steps"] != 1_000)
    assert not run_folder.is_held(tmp_path / "run")
    assert [*metrics.read(tmp_path / "run" / "metrics.jsonl")][-1]["steps"] == 1_000
    train(agent, tmp_path / "run", resume=True)
    assert_equal(tmp_path / "run", whole)


def test_a_run_that_has_no_checkpoint_yet_starts_again(tmp_path, agent):
    config = {"agent": "old", "train": {"script": Path(sys.argv[0]).name}}
    run = run_folder.create(tmp_path / "run", config)
    (run / "metrics.jsonl").write_text('{"steps": 7, "updates": 1}\n')
    assert train(agent, run, resume=True, total_steps=400)[-1]["steps"] == 400
    assert next(metrics.read(run / "metrics.jsonl"))["steps"] == 200


def test_a_checkpoint_that_was_never_finished_is_none(tmp_path, agent):
    config = {"agent": "old", "train": {"script": Path(sys.argv[0]).name}}
    run = run_folder.create(tmp_path / "run", config)
    for name in ("8.orbax-checkpoint-tmp", "5.damaged"):
        (run / "checkpoints" / name).mkdir(parents=True)
    assert train(agent, run, resume=True, total_steps=400)[-1]["steps"] == 400


def test_a_run_of_others_is_not_started_again(tmp_path, agent):
    run = run_folder.create(tmp_path / "run", {"agent": "old", "train": {}})
    (run / "metrics.jsonl").write_text('{"steps": 7, "updates": 1}\n')
    with pytest.raises(UserError, match="holds a run already"):
        train(agent, run, resume=True)
    assert next(metrics.read(run / "metrics.jsonl"))["steps"] == 7


def test_what_it_refuses(tmp_path, agent, whole):
    before = sorted(whole.rglob("*"))
    for options, line in (
        ({}, "holds a run already"),
        ({"resume": True, "batch_size": 4}, "batch_size: 8 -> 4; change them back"),
        ({"resume": True, "seed": 3}, "seed: 0 -> 3"),
        ({"run": None, "resume": True}, "resume is set but run is not"),
        ({"evaluate_steps": 9}, "evaluate_steps is set but evaluate is not"),
    ):
        with pytest.raises(UserError, match=line):
            train(agent, **{"folder": options.pop("run", whole)} | options)
    assert sorted(whole.rglob("*")) == before


def test_values_may_be_numpys(tmp_path):
    def train(agent, environment, **options):
        yield from ()

    for _ in podracer.record(
        train,
        None,
        Sides(),
        total_steps=np.int64(9),
        seed=np.int64(3),
        batch_size=np.int64(4),
        run=tmp_path,
        agent_name="none",
    ):
        pass
    config = run_folder.load_config(tmp_path)["config"]["train"]  # not damaged
    assert (config["total_steps"], config["seed"]) == (9, 3)
    assert config["options"] == {"batch_size": 4}


def test_wrappers_do_not_hide_the_environments_name(tmp_path, agent):
    recorded = podracer.record(
        anakin.train,
        agent,
        envs_jax.TimeLimit(envs_jax.TimeLimit(Sides(), 9), 8),
        run=tmp_path / "run",
        quiet=True,
        **OPTIONS,
    )
    next(recorded)
    recorded.close()
    config = run_folder.load_config(tmp_path / "run")["config"]
    assert config["env"] == "sides"


def test_it_evaluates_while_it_trains(tmp_path, agent, whole):
    options = {"evaluate": anakin.evaluate, "evaluate_steps": 2_000}
    train(agent, tmp_path / "run", evaluate_episodes=3, **options)
    found = [*metrics.read(tmp_path / "run" / "metrics.jsonl")]
    due = [row["steps"] for row in found if row["evaluation_episodes"] == 3]
    assert due == [2_000, 4_000]
    kept = [
        {k: v for k, v in row.items() if "evaluation" not in k}
        for row in rows(tmp_path / "run")
    ]
    assert kept == rows(whole)


def test_sebulba_is_recorded_alike(tmp_path, agent):
    for state, _ in podracer.record(
        sebulba.train,
        agent,
        lambda number: HostCounter(),
        run=tmp_path / "run",
        total_steps=4 * 3 * 10,
        unroll_length=3,
        threads_per_core=1,
        cores=cores.split(jax.devices()[:2]),
        quiet=True,
        agent_name="mine",
        env_name="counter",
    ):
        pass
    act = podracer.load(tmp_path / "run", agent=agent)
    assert (
        jax.tree.map(np.asarray, act.params)["bias"].tolist()
        == np.asarray(state.learner.shared["bias"]).tolist()
    )
    assert act.observation_spec.shape == (1,) and int(state.updates) == 10
    config = run_folder.load_config(tmp_path / "run")["config"]
    assert (config["agent"], config["env"]) == ("mine", "counter")
    assert "cores" not in config["train"]["options"]
