"""Hyperparameters by the real Optuna: what is searched, pruned, lost by a kill."""

import dataclasses
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Literal

import pytest

import anakin.command.subcommands as anakin_command
import podracer
from anakin.command.flags import Train as AnakinTrain
from podracer import metrics
from podracer.errors import UserError, check_range
from podracer.runs import listing, run, run_folder
from podracer.tune import commands, make_space, study, tune, tune_together
from tests import interruptions

KILL = 300  # seconds, after which a process is ended


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float = 0.01
    cost: float = 0.5
    layers: int = 2
    limit: float | None = None
    reduction: Literal["sum", "mean"] = "sum"
    decay: bool = True
    name: str = ""

    def __post_init__(self):
        check_range("rate", self.rate, 0.0, 1.0)
        if self.layers == 3 and not self.decay:
            raise UserError("layers is 3; it must be another number without decay")


def row(update, mean, episodes=100.0):
    return {"updates": update, "steps": 10.0 * update, "episodes": episodes} | {
        "episode_return": mean
    }


@pytest.mark.parametrize(
    ("text", "kind", "about"),
    [
        (
            "rate=1e-3..1e-1",
            "FloatDistribution",
            {"low": 1e-3, "high": 0.1, "log": True},
        ),
        ("agent.rate=0.01..0.05", "FloatDistribution", {"log": False}),
        ("cost=0..1", "FloatDistribution", {"low": 0.0, "high": 1.0, "log": False}),
        ("layers=1..100", "IntDistribution", {"low": 1, "high": 100, "log": False}),
        ("layers=2,4", "CategoricalDistribution", {"choices": (2, 4)}),
        ("rate=0.1,0.01", "CategoricalDistribution", {"choices": (0.1, 0.01)}),
        ("reduction=sum,mean", "CategoricalDistribution", {"choices": ("sum", "mean")}),
        ("decay=True,false", "CategoricalDistribution", {"choices": (True, False)}),
    ],
)
def test_a_field_becomes_a_distribution(text, kind, about):
    [(name, distribution)] = make_space(Config(), [text]).items()
    assert text.removeprefix("agent.").startswith(name)
    assert type(distribution).__name__ == kind
    assert {x: getattr(distribution, x) for x in about} == about


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        ([], "tune.fields is empty; name what to search"),
        (["rat=1e-3..1"], "unknown field 'rat'; did you mean 'rate'. known: cost"),
        (["name=a,b"], "unknown field 'name'"),
        (["rate"], "is 'rate'; it must be rate=LOW..HIGH or VALUE,VALUE"),
        (["reduction="], "is 'reduction='; it must be reduction=sum,mean"),
        (["rate=1e-1..1e-3"], "rate=1e-1..1e-3 is empty: LOW must be below HIGH"),
        (["rate=0.01..0.01"], "is empty"),
        (["rate=0.001..2"], "rate=0.001..2: rate is 2.0; it must be from 0 to 1"),
        (
            ["rate=a..b"],
            "rate=a..b must be LOW..HIGH or VALUE,VALUE, of finite numbers",
        ),
        (["cost=0..inf"], "of finite numbers"),
        (["layers=1..2.5"], "of whole numbers"),
        (["rate=0.01"], "must be different values, two or more"),
        (["layers=2,4,2"], "must be different values, two or more"),
        (["reduction=sum,max"], "reduction has no value 'max'; known: mean, sum"),
        (
            ["rate=0.1..0.5"],
            "leaves out 0.01, with which the first trial begins: add it",
        ),
        (["limit=0..1"], "leaves out None, .* or set --agent.limit to one of these"),
        (["rate=0.001..1", "agent.rate=0.01,1"], "has rate twice: give one range"),
    ],
)
def test_what_cannot_be_searched_is_one_line(texts, line):
    with pytest.raises(UserError, match=line) as error:
        make_space(Config(), texts)
    assert "\n" not in str(error.value)


def states(searched):
    return [x.state.name for x in searched.trials]


def test_the_first_trial_is_the_config_and_the_best_is_found(tmp_path, capsys):
    folders = []

    def train(config, folder):
        folders.append(folder)
        yield None
        # The score is that of the last hundred episodes.
        for update, mean in (1, 100.0), (2, -abs(math.log(config.rate / 0.1))):
            yield row(update, mean)

    options = {"folder": tmp_path / "s", "pruner": study.optuna.pruners.NopPruner()}
    searched = tune(train, Config(), ["rate=1e-4..1"], trials=12, **options)
    assert searched.trials[0].params == {"rate": 0.01}
    assert searched.trials[0].value == -math.log(10)
    assert searched.trials[0].intermediate_values == {10: 100.0, 20: -math.log(10)}
    assert searched.best_value > -math.log(10)
    assert states(searched) == ["COMPLETE"] * 12
    assert folders == [tmp_path / "s" / f"trial-{i}" for i in range(12)]
    assert capsys.readouterr().out.startswith(
        "trial-0: mean return -2.3, with rate 0.01"
    )
    head, best, *_ = study.table(searched)
    assert head.split() == ["trial", "return", "steps", "state", "rate"]
    assert best.split()[0] == f"trial-{searched.best_trial.number}"
    # Again it is finished already, and with more trials it goes on.
    assert (
        len(tune(train, Config(), ["rate=1e-4..1"], trials=12, **options).trials) == 12
    )
    more = tune(train, Config(), ["rate=1e-4..1"], trials=14, **options)
    rates = [x.params["rate"] for x in more.trials]
    assert len(rates) == 14 == len({*rates})
    with pytest.raises(UserError, match="but this study searches rate=1e-4..1: leave"):
        tune(train, Config(), ["cost=0..1"], trials=14, **options)


def test_a_resumed_search_draws_new_values(tmp_path):
    def train(config, folder):
        yield row(1, 1.0)

    for trials in (3, 6):  # random ones, all of them: TPE begins with ten
        options = {"folder": tmp_path, "trials": trials}
        searched = tune(train, Config(), ["rate=1e-4..1"], **options)
    assert len({x.params["rate"] for x in searched.trials}) == 6


def test_a_bad_trial_is_pruned_and_closed(tmp_path):
    closed, began = [], []

    def train(config, folder):
        began.append(folder.name)
        # The worst so far, from the sixth on: Optuna's median needs five.
        mean = -float(len(began))
        try:
            for update in range(1, 5):
                yield row(update, mean)
        finally:
            closed.append((folder.name, update))

    searched = tune(train, Config(), ["rate=1e-4..1"], trials=7, folder=tmp_path)
    assert states(searched) == ["COMPLETE"] * 5 + ["PRUNED"] * 2
    assert closed[4:] == [("trial-4", 4), ("trial-5", 1), ("trial-6", 1)]
    assert "pruned" in study.table(searched)[-1]


def test_a_trial_that_fails_ends_alone(tmp_path, capsys):
    """Not finite, without an episode, or with values that do not go together."""
    began = []

    def train(config, folder):
        began.append(folder.name)
        yield row(1, 1.0, episodes=0.0 if len(began) == 3 else 100.0)
        if len(began) == 2:
            raise FloatingPointError("update 2: loss/total not finite")

    wanted = study.load(tmp_path)
    for layers, decay in (2, True), (2, False), (3, False), (3, True):
        wanted.enqueue_trial({"layers": layers, "decay": decay})
    fields = "layers=2..3", "decay=true,false"
    searched = tune(train, Config(), fields, trials=4, folder=tmp_path)
    assert states(searched) == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    said = capsys.readouterr().out
    assert "trial-0: mean return 1, with layers 2, decay True" in said
    assert "failed: update 2: loss/total not finite" in said
    assert "failed: no episode has finished" in said
    assert "failed: layers is 3; it must be another number without decay" in said
    assert len(began) == 3
    assert len(study.table(searched)) == 5


def test_bad_input_ends_the_search_and_is_not_tried_again(tmp_path):
    def train(config, folder):
        yield row(1, 1.0)
        raise UserError("the disk is full")

    with pytest.raises(UserError, match="the disk is full"):
        tune(train, Config(), ["rate=1e-4..1"], folder=tmp_path)

    def works(config, folder):
        assert folder.name == "trial-1"
        yield row(1, 1.0)

    searched = tune(works, Config(), ["rate=1e-4..1"], trials=2, folder=tmp_path)
    assert states(searched) == ["FAIL", "COMPLETE"]


def test_an_interrupted_trial_is_tried_again_in_its_folder(tmp_path):
    began = []

    def train(config, folder):
        began.append((config.rate, folder.name))
        yield row(1, 1.0)
        if len(began) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        yield row(2, 2.0)
        if len(began) == 4:
            raise RuntimeError("a simulator has crashed")

    fields, options = ["rate=1e-4..1"], {"folder": tmp_path, "trials": 3}
    searched = tune(train, Config(), fields, **options)
    assert states(searched) == ["COMPLETE", "RUNNING"]
    with pytest.raises(RuntimeError):
        tune(train, Config(), fields, **options)
    searched = tune(train, Config(), fields, **options)
    assert states(searched) == ["COMPLETE", "FAIL", "COMPLETE", "FAIL", "COMPLETE"]
    (_, second, again, third, last) = began
    assert second == again and third == last and second != third
    assert [x[1] for x in began[1:]] == ["trial-1"] * 2 + ["trial-3"] * 2
    assert len(study.table(searched)) == 4  # of three trials


SCRIPT = """
import pathlib, sys, time
import podracer.tune
from tests.podracer.test_tune import Config, row

def train(config, folder):
    folder.mkdir(exist_ok=True)
    for update in range(1, 6):
        time.sleep(0.02)
        (folder / "said").touch()
        yield row(update, -abs(config.rate - 0.1))

podracer.tune.tune(
    train, Config(), ["rate=1e-4..1"], folder=sys.argv[1], trials=12
)
"""


def test_killed_at_moments_no_finished_trial_is_lost(tmp_path):
    folder, before, kills = tmp_path / "s", [], 0
    for seconds in (0.05, 0.23, 0.31, None):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if seconds:
                began = {*folder.glob("*/said")}
                deadline = time.monotonic() + KILL
                while {*folder.glob("*/said")} == began and process.poll() is None:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
                time.sleep(seconds)
                process.kill()
            error = process.communicate(timeout=KILL)[1]
        finally:
            process.kill()
            process.wait()
        assert process.returncode in (0, -signal.SIGKILL), error
        kills += process.returncode == -signal.SIGKILL
        trials = study.load(folder).trials
        finished = [
            (x.number, x.params, x.value) for x in trials if x.value is not None
        ]
        assert finished[: len(before)] == before
        before = finished
    assert kills and len(finished) == 12
    failed = [x for x in trials if x.state.name == "FAIL"]
    retries = {
        x.user_attrs["retry_of"]: x for x in trials if "retry_of" in x.user_attrs
    }
    assert {x.number for x in failed} == retries.keys()
    for x in failed:
        assert x.params.items() <= retries[x.number].params.items()


def test_a_line_cut_short_by_a_kill_costs_that_line_only(tmp_path):
    def train(config, folder):
        yield row(1, 1.0)

    options = {"folder": tmp_path, "trials": 2}
    tune(train, Config(), ["rate=1e-4..1"], **options)
    with open(tmp_path / study.LOG, "a") as log:
        log.write('{"op_code":4,"worker_id":')
    options["trials"] = 3
    assert len(tune(train, Config(), ["rate=1e-4..1"], **options).trials) == 3
    assert len(study.load(tmp_path).trials) == 3


def test_a_study_of_somebody_else_leads_nowhere_and_shows_no_escapes(tmp_path):
    foreign = study.load(tmp_path)
    trial = foreign.ask()
    trial.set_user_attr(study.FOLDER, "../outside")
    told = foreign.ask()
    told.suggest_float("\x1b[31m", 0, 1)
    foreign.tell(told, 1.0)
    folders = []

    def train(config, folder):
        folders.append(folder)
        yield row(1, 1.0)

    searched = tune(train, Config(), ["rate=1e-4..1"], folder=tmp_path, trials=2)
    assert folders == [tmp_path / "trial-2"]
    assert "\x1b" not in "".join(study.table(searched))
    linked = tmp_path / "s" / "trial-0"
    linked.parent.mkdir()
    linked.symlink_to(tmp_path)
    with pytest.raises(UserError, match="trial-0: cannot write: a link"):
        next(commands.rows(None, study.Trial("trial-0", linked, {}, None)))


def test_a_damaged_study_is_one_line(tmp_path):
    (tmp_path / study.LOG).write_text('{"op_code": 0}\n{nothing}\n{}\n')
    with pytest.raises(UserError, match="study.log: damaged, or not a study") as error:
        tune(None, Config(), ["rate=1e-4..1"], folder=tmp_path)
    assert "\n" not in str(error.value)


def test_without_optuna_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="optuna.*: pip install .*(optuna>=4|tune)"):
        tune(None, Config(), ["rate=1e-4..1"], folder=tmp_path)
    with pytest.raises(UserError, match="optuna"):
        anakin_command.COMMANDS["tune"](["--env", "catch"])
    assert not list(tmp_path.iterdir())


def test_one_process_at_a_time(tmp_path):
    with run_folder.held(tmp_path), pytest.raises(UserError, match="another process"):
        tune(None, Config(), ["rate=1e-4..1"], folder=tmp_path)


def test_several_in_one_program_end_early_together_only(tmp_path):
    """The third program has one trial that would go on, the fourth has none."""
    reported, programs = [], []

    def train(trials, report):
        programs.append([x.name for x in trials])
        number = len(programs)
        for update in range(1, 4):
            means = [[1.0, 1.0], [1.0, 1.0], [2.0, 0.0], [0.0, 0.0]][number - 1]
            results = [row(update, x) for x in means]
            if number == 2:
                results[1] = FloatingPointError("update 1")
            if update == 2:
                results[0] = None  # none of it this time
            reported.append(number)
            if report(results):
                return

    options = {"folder": tmp_path, "trials": 7, "together": 2}
    pruner = study.optuna.pruners.MedianPruner(n_startup_trials=2)
    searched = tune_together(
        train, Config(), ["rate=1e-4..1"], pruner=pruner, **options
    )
    assert programs[1:3] == [["trial-2", "trial-3"], ["trial-4", "trial-5"]]
    names = ["COMPLETE"] * 3 + ["FAIL"] + ["COMPLETE"] * 2 + ["PRUNED"] * 2
    assert states(searched) == names
    assert [reported.count(i) for i in (1, 2, 3, 4)] == [3, 3, 3, 1]


SMALL = (
    *("--agent", "ppo", "--env", "catch", "--batch-size", "8", "--unroll-length", "4"),
    *("--network.hidden-sizes", "8", "--total-steps", "640", "--agent.epochs", "1"),
    *("--updates-per-report", "4", "--agent.minibatches", "1"),
)
FLOATS = ("--tune.fields", "learning_rate=1e-5..1e-1", "clip=0.1,0.2")


@pytest.fixture
def command(monkeypatch):
    """`anakin` in this process, which has its cores already."""
    monkeypatch.setattr("podracer.parallel.use_cpu_cores", lambda *_, **__: None)
    monkeypatch.setattr("sys.argv", ["anakin"])  # which run folders keep

    def run_command(name, *arguments):
        anakin_command.COMMANDS[name]([*arguments])

    return run_command


@pytest.mark.slow
def test_the_command_searches_in_programs_of_several(tmp_path, command, capsys):
    base = tmp_path / "s"
    how = "--tune.trials", "3", "--tune.together", "2", "--cores", "2", f"--run={base}"
    command("tune", *SMALL, *FLOATS, *how)
    said = capsys.readouterr().out.splitlines()
    names = [f"trial-{i}" for i in range(4)]  # two whole programs
    assert {x.name for x in base.iterdir()} == {
        *names,
        "study.log",
        "together.json",
        ".lock",
    }
    trials = study.load(base).trials
    for x, trial in zip(names, trials, strict=True):
        agent = run.read_run(base / x).config["agent"]
        assert agent["learning_rate"] == trial.params["learning_rate"]
        assert agent["clip"] == trial.params["clip"]
        recent = metrics.Recent(metrics.read(base / x / "metrics.jsonl"))
        assert trial.value == recent.mean_return()
        assert run.read_run(base / x).config["cores"] == 1  # as if it were alone
        assert run_folder.load_state(base / x)["state"] == "finished"
    assert len({x.params["learning_rate"] for x in trials}) == 4
    assert [x.folder.name for x in listing.find([tmp_path])] == names
    # What it prints trains the best, with its hyperparameters.
    [line] = [x for x in said if x.startswith("train the best: ")]
    program, *best = shlex.split(line.removeprefix("train the best: "))
    assert program == "anakin"
    command(*best, "--run", str(tmp_path / "best"), "--total-steps=64", "--cores=2")
    mine = run.read_run(tmp_path / "best").config["agent"]
    top = max(trials, key=lambda x: x.value)
    assert mine["learning_rate"] == top.params["learning_rate"]
    # More trials of the study, one after another.
    capsys.readouterr()
    more = "--tune.trials", "5", "--tune.together", "1", "--cores", "1"
    command("tune", "--resume", str(base), *more)
    assert len(study.load(base).trials) == 5
    with pytest.raises(UserError, match="a study, of .*: say anakin tune --resume"):
        command("train", "--resume", str(base))
    with pytest.raises(UserError, match="a run, not a study: say anakin train --res"):
        command("tune", "--resume", str(base / "trial-4"))
    act = podracer.load(base / "trial-4")
    assert act.params is not None
    with pytest.raises(UserError, match="its configuration differs: tune.fields"):
        command("tune", "--resume", str(base), "--tune.fields", "clip=0.1,0.2")


def test_fields_that_are_no_floats_are_searched_one_after_another(
    tmp_path, command, capsys
):
    fields = "--tune.fields", "epochs=1..2", "--tune.trials", "1"
    how = "--tune.together", "2", "--cores", "1", f"--run={tmp_path / 's'}"
    command("tune", *SMALL, *fields, *how)
    assert "can differ in floats only: trials one after" in capsys.readouterr().out
    assert len(study.load(tmp_path / "s").trials) == 1


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "tune.fields is empty; name what to search"),
        (["--tune.trials=0"], "trials is 0; it must be from 1 to 65536"),
        (["--tune.together=0"], "together is 0; it must be at least 1"),
        (["--seeds=2"], "--seeds, --sweep, .* are for train: leave"),
        (["--sweep", "clip=0.1,0.2"], "--seeds, --sweep, .* are for train: leave"),
        (["--schedule", "clip=0:0.1,9:0.2"], "--schedule are for train: leave"),
        (["--stop-at=1"], "--stop-at, --profile and --overwrite are for one run"),
        (["--overwrite"], "--overwrite are for one run"),
        (
            ["--tune.sampler=TPE"],
            "tune.sampler is TPE; unknown to Optuna; known: .*TPESampler",
        ),
        (["--tune.pruner=PercentilePruner"], "needs more than Optuna's defaults"),
        (["--run=full", *FLOATS], "full: is not empty; continue the study in it with"),
    ],
)
def test_bad_flags_are_one_line(flags, line, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full" / "run").mkdir(parents=True)
    with pytest.raises(UserError, match=line) as error:
        command("tune", *SMALL, *flags)
    assert "\n" not in str(error.value)


def test_samplers_and_pruners_by_name():
    for name in ("TPESampler", "RandomSampler"):
        assert type(commands._made("sampler", name, 3)).__name__ == name
    assert type(commands._made("pruner", "NopPruner")).__name__ == "NopPruner"


def test_a_run_that_ended_before_its_study_knew_is_not_trained_again(
    tmp_path, monkeypatch
):
    """What its folder says is told."""
    ended = tmp_path / "trial-0"
    ended.mkdir()
    (ended / "config.json").touch()
    with metrics.JsonLines(ended / "metrics.jsonl") as lines:
        lines.write(row(1, 3.0))
    monkeypatch.setattr("podracer.checkpoints.finding.find_whole", lambda _: iter([1]))
    keep = run.Options()

    def train(trials, report):
        config = AnakinTrain(trials[0].config, None, total_steps=10, keep=keep)
        assert [*commands.rows(None, trials[0]._replace(config=config))] == []

    fields, options = ["rate=1e-4..1"], {"folder": tmp_path, "trials": 1}
    searched = tune_together(train, Config(), fields, **options)
    assert searched.best_value == 3.0
    state = {"state": "failed", "error": "update 2", "type": "FloatingPointError"}
    (ended / "state.json").write_text(json.dumps(state))
    trial = study.Trial("trial-0", ended, {}, None)
    with pytest.raises(FloatingPointError, match="trial-0: update 2"):
        next(commands.rows(None, trial))


@pytest.mark.slow
def test_a_killed_command_continues_its_trial_from_the_checkpoint(tmp_path):
    """Of Sebulba; what is finished is not touched."""
    folder, said = tmp_path / "s", tmp_path / "said"
    how = (
        *("--env=jax:catch", "--batch-size=8", "--unroll-length=5", "--cores=2"),
        *("--threads-per-core=1", "--network.hidden-sizes", "16", "--tune.trials=3"),
        *("--total-steps=8000", "--checkpoint.steps=2000", "--tune.pruner=NopPruner"),
        *("--tune.fields", "learning_rate=1e-5..1e-1", f"--run={folder}"),
    )
    process = interruptions.start("sebulba", "tune", *how, output=said)
    second = folder / "trial-1"
    try:
        interruptions.until(
            lambda: process.exitcode is not None or interruptions.checkpoints(second)
        )
    finally:
        process.kill()
        interruptions.ended(process)
    assert process.exitcode == -signal.SIGKILL, said.read_text()
    first = (folder / "trial-0" / "state.json").read_bytes()
    before = study.load(folder).trials[0]
    started = run_folder.load_state(second)["started"]
    process = interruptions.start("sebulba", "tune", f"--resume={folder}", output=said)
    assert interruptions.ended(process) == 0, said.read_text()
    trials = study.load(folder).trials
    assert (folder / "trial-0" / "state.json").read_bytes() == first
    assert trials[0] == before
    assert [x.state.name for x in trials if x.number != 1] == ["COMPLETE"] * 3
    assert trials[2].params == trials[1].params
    assert run_folder.load_state(second)["started"] == started  # and has each row once
    steps = [x["steps"] for x in interruptions.rows(second)]
    assert steps == [40, *range(80, 8_001, 80)]
    assert any("train the best: sebulba train" in x for x in interruptions.lines(said))
