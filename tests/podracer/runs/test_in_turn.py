"""Several runs one after another: what each costs the others, and what is left to resume."""

import dataclasses
import functools
import json
import os
import signal
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from podracer import metrics, parallel
from podracer.agents import ppo
from podracer.errors import UserError
from podracer.runs import in_turn, run
from sebulba.command.flags import Train

ROW = dict.fromkeys(("episodes", "steps_per_second", "compile_seconds"), 1.0)
ABOUT = {"agent": "ppo", "env": "catch"}
LAST = 3  # updates, of 16 steps


class State(NamedTuple):
    updates: jax.Array


LAYOUT = State(parallel.SHARED)


def configured(folder, **options):
    """Of three runs, with seeds from 5."""
    config = Train(ppo.Config(), None, seed=5, seeds=3, total_steps=16 * LAST)
    keep = dataclasses.replace(config.keep, quiet=True, run=folder)
    return dataclasses.replace(config, keep=dataclasses.replace(keep, **options))


def resumed(folder, **options):
    return configured(None, resume=folder, **options)


def train(config, at=lambda seed, update: None):
    """Trains; `at` is called before each update. Returns the seeds that began, and from where."""
    begun = []

    def train_one(config):
        def loop(restore, stopped):
            state = State(jnp.array(0))
            state = restore(state, LAYOUT) if restore else state
            begun.append((config.seed, int(state.updates)))
            return updates(int(state.updates), stopped)

        def updates(done, stopped):
            for update in range(done + 1, LAST + 1):
                at(config.seed, update)
                row = {"updates": update, "steps": 16 * update, "seconds": 1.0}
                row |= {"episode_return": 10.0 * config.seed}
                yield State(jnp.array(update)), ROW | row
                if stopped():
                    return

        run.train(loop, config, None, **ABOUT)

    try:
        in_turn.train(train_one, in_turn.choose(config), config, **ABOUT)
    finally:
        train.begun = begun
    return begun


def states(folder):
    return [
        json.loads((folder / f"seed-{i}" / "state.json").read_text())["state"]
        for i in (5, 6, 7)
    ]


def test_each_has_a_folder_and_all_a_table_and_a_curve(tmp_path, capsys):
    assert train(configured(tmp_path, quiet=False)) == [(5, 0), (6, 0), (7, 0)]
    names = {"seed-5", "seed-6", "seed-7", "together.json", "curve.png"}
    assert {x.name for x in tmp_path.iterdir()} == names
    stored = run.read_run(tmp_path / "seed-6")
    assert (stored.config["seed"], stored.config["seeds"]) == (6, 1)
    assert run.read_run(tmp_path, together=True).config["seeds"] == 3
    assert capsys.readouterr().out.splitlines()[-6:] == [
        "run     seed  steps  return  state",
        "seed-5  5     48     50      finished",
        "seed-6  6     48     60      finished",
        "seed-7  7     48     70      finished",
        "ppo on catch: mean return 60 (50 to 70, 95 %) over 3 runs",
        f"ppo on catch: curve in {tmp_path / 'curve.png'}",
    ]


def test_a_run_that_fails_ends_alone_and_stays_so(tmp_path):
    def fail(seed, update):
        if (seed, update) == (6, 2):
            raise FloatingPointError("update 2: loss/total not finite")

    line = f"{tmp_path / 'seed-6'}: update 2: loss/total not finite"
    with pytest.raises(FloatingPointError, match=f"^{line}$"):
        train(configured(tmp_path), fail)
    assert states(tmp_path) == ["finished", "failed", "finished"]
    with pytest.raises(FloatingPointError, match=f"^{line}$"):
        train(resumed(tmp_path))
    assert train.begun == []


def test_another_error_ends_all_and_is_resumed(tmp_path):
    def fail(seed, update):
        if (seed, update) == (6, 2):
            raise RuntimeError("the server is gone")

    with pytest.raises(RuntimeError, match="the server is gone"):
        train(configured(tmp_path), fail)
    assert train.begun == [(5, 0), (6, 0)]
    # It wrote no checkpoint, so it starts again; what is finished is not touched.
    before = {x: x.stat().st_mtime_ns for x in (tmp_path / "seed-5").iterdir()}
    assert train(resumed(tmp_path)) == [(6, 0), (7, 0)]
    assert before == {x: x.stat().st_mtime_ns for x in (tmp_path / "seed-5").iterdir()}
    assert states(tmp_path) == ["finished"] * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_one_run_and_starts_no_other(tmp_path, number):
    """Also where it comes in the last update: that run is finished, and no other begins."""

    def interrupt(seed, update):
        if (seed, update) == (5, LAST):
            os.kill(os.getpid(), number)

    if number == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            train(configured(tmp_path), interrupt)
    else:
        train(configured(tmp_path), interrupt)
    assert train.begun == [(5, 0)]

    def stop(seed, update):
        if (seed, update) == (6, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    assert train(resumed(tmp_path), stop) == [(6, 0)]
    assert train(resumed(tmp_path)) == [(6, 2), (7, 0)]
    assert states(tmp_path) == ["finished"] * 3


def test_a_signal_is_answered_with_the_command_that_resumes(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sebulba", "train", "--seeds", "3"])
    stop = functools.partial(os.kill, os.getpid(), signal.SIGTERM)
    several = tmp_path / "several"
    train(configured(several, quiet=False), lambda seed, update: update == 2 and stop())
    assert f"to resume: sebulba train --resume {several}" in lines(capsys)
    alone = configured(tmp_path / "one", quiet=False)
    names = {"agent": "my_agent", "env": "my_env:Chase"}
    run.train(lambda **_: stopped_at_once(stop), alone, None, **names)
    flags = "--agent my_agent --env my_env:Chase"
    assert lines(capsys)[-1] == (
        f"to resume: sebulba train --resume {tmp_path / 'one'} {flags}"
    )


def stopped_at_once(stop):
    row = {"updates": 1, "steps": 16, "seconds": 1.0, "episode_return": 1.0}
    yield State(jnp.array(1)), ROW | row
    stop()


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_a_finished_run_that_is_resumed_compiles_nothing(tmp_path, capsys):
    train(configured(tmp_path))
    config = resumed(tmp_path / "seed-6", quiet=False)
    run.train(None, config, None, **ABOUT)  # is not called
    assert "all of its 48 steps are done: nothing was left to do" in lines(capsys)[-1]


def test_each_stops_early_alone_and_is_then_done(tmp_path):
    options = {"stop_at": 55.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("podracer.metrics.recent.EPISODES", 1)
        assert len(train(configured(tmp_path, **options))) == 3
        assert states(tmp_path) == ["finished", "stopped", "stopped"]
        rows = [*metrics.read(tmp_path / "seed-6" / "metrics.jsonl")]
        assert [x["updates"] for x in rows] == [1]
        assert train(resumed(tmp_path, **options)) == []
        assert train(resumed(tmp_path)) == [(6, 1), (7, 1)]  # --stop-at None


def test_overwriting_leaves_nothing_that_a_resume_would_take_for_new(tmp_path):
    train(configured(tmp_path))
    with pytest.raises(UserError, match="seed-5: holds a run already"):
        train(configured(tmp_path))

    def fail(seed, update):
        raise RuntimeError("at once")

    with pytest.raises(RuntimeError):
        train(configured(tmp_path, overwrite=True), fail)
    assert train(resumed(tmp_path)) == [(5, 0), (6, 0), (7, 0)]


def test_a_run_in_the_way_is_said_before_any_begins(tmp_path):
    (tmp_path / "seed-7").mkdir()
    (tmp_path / "seed-7" / "metrics.jsonl").touch()
    with pytest.raises(UserError, match="seed-7: holds a run already"):
        train(configured(tmp_path))
    assert [x.name for x in tmp_path.iterdir()] == ["seed-7"]
    with pytest.raises(UserError, match="is a run itself; choose another folder"):
        (tmp_path / "config.json").touch()
        train(configured(tmp_path))
