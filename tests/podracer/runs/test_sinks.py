"""Sinks: all get the same rows, none can end a run, and the disk stays bounded."""

import importlib.machinery
import importlib.util
import math
import resource
import struct
import sys
import types

import pytest

from podracer import metrics
from podracer.errors import UserError
from podracer.runs import run_folder, sinks
from podracer.runs.sinks import Config, Sinks, WandB


def row(steps, **more):
    return {
        "steps": steps,
        "updates": steps // 10,
        "seconds": 0.5,
        "episodes": 2,
        "episode_return": 1.0,
    } | more


def write(folder, rows, total_steps=1000, config=Config()):  # noqa: B008 frozen
    with Sinks(folder, total_steps, config) as written:
        for one in rows:
            written.write(one)


def read(folder):
    return [*metrics.read(folder / run_folder.METRICS)]


def events(folder):
    """(steps, name, number) of each scalar in TensorBoard's files, and where they restart.

    A record is its length, a checksum, an event and a checksum.
    """
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    scalars, starts = [], []
    for path in sorted((folder / run_folder.TENSORBOARD).iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                scalars.append((event.step, value.tag, value.simple_value))
            if event.HasField("session_log"):
                starts.append(event.step)
    return scalars, starts


def test_tensorboard_gets_what_the_file_gets(tmp_path):
    pytest.importorskip("tensorboardX")
    rows = [row(10, kl=math.nan), row(20, kl=0.5)]
    write(tmp_path, rows, config=Config(tensorboard=True))
    scalars, starts = events(tmp_path)
    assert {(steps, name): number for steps, name, number in scalars} == {
        (one["steps"], name): number
        for one in rows
        for name, number in one.items()
        if not math.isnan(number)
    }
    assert starts == [1]


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path):
    pytest.importorskip("tensorboardX")
    config = Config(tensorboard=True)
    write(tmp_path, [row(10), row(20)], config=config)
    metrics.cut(tmp_path / run_folder.METRICS, 1)
    write(tmp_path, [row(20)], config=config)
    assert events(tmp_path)[1][-1] == 11
    assert [one["steps"] for one in read(tmp_path)] == [10, 20]


def test_tensorboard_on_a_full_disk_is_dropped(tmp_path, capsys):
    pytest.importorskip("tensorboardX")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))  # a file, in bytes
    try:
        rows = [row(steps) for steps in range(10, 201, 10)]
        write(tmp_path, rows, config=Config(tensorboard=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("TensorBoard: ") and "File too large; it gets no" in line
    assert read(tmp_path) == rows


class Wandb(types.ModuleType):
    """A stand-in for the package, which keeps what it is sent."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
        self.told, self.rows, self.finished = [], [], 0
        # As in the package, which gives the active run unless it is asked for another.
        self.active = None

    def init(self, **told):
        self.told.append(told)
        folder = run_folder.Path(told["dir"], "wandb", "offline-run-2026-abc")
        folder.mkdir(parents=True, exist_ok=True)
        if self.active is None or told["reinit"] != "create_new":
            self.active = told["name"]
        elif told["name"] != self.active:
            return Wandb()
        return self

    def Settings(self, **settings):
        return settings

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "steps")

    def log(self, row):
        self.rows.append(row)

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    module.config = Config(wandb="project")  # which looks for the package
    return module


@pytest.fixture
def folder(tmp_path):
    return run_folder.create(tmp_path / "run", {"agent": "ppo"})


def test_wandb_goes_on_with_its_own_run(folder, wandb):
    for steps in (10, 20):
        write(folder, [row(steps)], config=wandb.config)
    assert wandb.rows == [row(10), row(20)]
    assert wandb.finished == 2
    first, second = wandb.told
    assert (first["project"], first["name"]) == ("project", "run")
    assert first["config"] == {"agent": "ppo"}
    assert (first["id"], second["id"]) == (None, "abc")


def test_members_of_a_population_have_runs_of_their_own(tmp_path, wandb):
    folders = [run_folder.create(tmp_path / x, {}) for x in ("a", "b")]
    runs = [WandB(folder, "project") for folder in folders]
    for number, run in enumerate(runs):
        run.write(row(number))
    assert wandb.rows == [row(0)]


@pytest.mark.parametrize("method", ["log", "finish"])
def test_a_sink_that_fails_is_dropped_in_one_line(folder, wandb, capsys, method):
    def fail(*_):
        raise ConnectionError("no\nnetwork")

    setattr(wandb, method, fail)
    write(folder, [row(10), row(20), row(30)], config=wandb.config)
    assert capsys.readouterr().err == (
        "Weights & Biases: no network; it gets no more metrics, the run continues\n"
    )
    assert len(read(folder)) == 3


def test_a_sink_that_cannot_begin_is_bad_input(folder, wandb):
    def fail(**_):
        raise RuntimeError("not logged in")

    wandb.init = fail
    with pytest.raises(UserError, match=r"--wandb project: not logged in .*offline"):
        write(folder, [], config=wandb.config)


def test_all_are_closed_when_the_run_fails(folder, wandb):
    with (
        pytest.raises(FloatingPointError),
        Sinks(folder, 1000, wandb.config) as written,
    ):
        written.write(row(10))
        raise FloatingPointError
    assert wandb.finished == 1


@pytest.mark.parametrize(
    "module, extra, config",
    [
        ("wandb", "wandb", {"wandb": "project"}),
        ("tensorboardX", "tensorboard", {"tensorboard": True}),
    ],
)
def test_a_missing_package_is_named(monkeypatch, module, extra, config):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        sinks.importlib.util,
        "find_spec",
        lambda name: None if name == module else find(name),
    )
    with pytest.raises(UserError, match=f"(?i)pip install '{module}>="):
        Config(**config)


def test_rows_are_bounded_whatever_a_run_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "MOST_ROWS", 10)
    rows = [row(steps, episode_return=float(steps)) for steps in range(10, 2001, 10)]
    write(tmp_path, rows[:150], total_steps=2000)
    write(tmp_path, rows[150:], total_steps=2000)  # resumed
    kept = read(tmp_path)
    assert len(kept) == 1 + 10 + 1  # the first, all others, where it was resumed
    assert [kept[0]["steps"], kept[-1]["steps"]] == [10, 2000]
    for name in ("episodes", "seconds"):  # nothing is lost
        assert sum(x[name] for x in kept) == sum(x[name] for x in rows)
    mean = sum(x["episodes"] * x["episode_return"] for x in kept) / (2 * len(rows))
    assert mean == pytest.approx(sum(x["steps"] for x in rows) / len(rows))


def test_rows_of_a_usual_run_are_not_touched(tmp_path):
    rows = [row(steps, kl=0.1 * steps) for steps in range(10, 1001, 10)]
    write(tmp_path, rows)
    assert read(tmp_path) == rows
