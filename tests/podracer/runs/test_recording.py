"""Recording: whatever ends a training loop, what it reported is on disk and in one line."""

import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from PIL import Image

from podracer import metrics
from podracer.errors import UserError
from podracer.runs import drawing, plot, run_folder
from podracer.runs.recording import record_updates, track_state

CALLS = 20


def train(end=None, ended=None):
    """Yields as `anakin.train` does; raises `end` half-way; notes that it was closed."""
    try:
        for call in range(1, CALLS + 1):
            if end is not None and call > CALLS / 2:
                raise end
            yield (
                f"state {call}",
                {
                    "steps": 1000 * call,
                    "updates": call,
                    "seconds": 0.5,
                    "steps_per_second": 2000.0,
                    "compile_seconds": 1.0,
                    "episodes": 100 * (call % 2),
                    "episode_return": float(call) if call % 2 else math.nan,
                },
            )
    finally:
        if ended is not None:
            ended.append(True)


def record(*arguments, **options):
    """Runs a recorded loop to its end; returns its last state and metrics."""
    state = row = None
    for state, row in record_updates(*arguments, **options):
        pass
    return state, row


def returns(folder):
    rows = metrics.read(folder / run_folder.METRICS)
    return [row["episode_return"] for row in rows]


def is_png(path):
    with Image.open(path) as image:
        image.verify()
        return image.format == "PNG"


def test_a_run_to_its_end(tmp_path, capsys):
    state, last = record(train(), tmp_path, 1000 * CALLS, "impala on catch")
    assert state == f"state {CALLS}"
    assert last["steps"] == 1000 * CALLS
    assert returns(tmp_path) == [n if n % 2 else None for n in range(1, CALLS + 1)]
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "metrics.jsonl", "state.json"]
    assert is_png(tmp_path / "curve.png")
    first, *_, line = capsys.readouterr().out.splitlines()
    assert first == f"impala on catch: recorded in {tmp_path}"
    assert line == (
        "impala on catch: mean return 19, 2k steps/s, curve in "
        f"{tmp_path / 'curve.png'}"
    )


def test_quiet(tmp_path, capsys):
    record(train(), tmp_path, 1000 * CALLS, quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "end",
    [KeyboardInterrupt(), FloatingPointError("update 11"), RuntimeError("thread")],
)
def test_what_was_good_is_kept(tmp_path, end):
    ended = []
    with pytest.raises(type(end)) as raised:
        record(train(end, ended), tmp_path, 1000 * CALLS)
    assert raised.value is end
    assert ended
    assert len(returns(tmp_path)) == CALLS / 2
    assert is_png(tmp_path / "curve.png")


def test_a_full_disk_ends_the_loop(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # a file, in bytes
    ended = []
    updates = train(ended=ended)
    try:
        with pytest.raises(UserError, match=r"metrics\.jsonl: cannot write: File too"):
            record(updates, tmp_path, 1000 * CALLS, quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ended  # though the generator is still here: it may have threads
    assert 3 < len(returns(tmp_path)) < CALLS
    assert sorted(os.listdir(tmp_path)) == ["metrics.jsonl", "state.json"]


def test_a_run_has_failed_where_a_full_disk_takes_no_new_file(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    reason = "x" * 2000  # so that the state with it does not fit, and without it does
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with (
            pytest.raises(RuntimeError, match=reason),
            track_state(tmp_path, 1),
        ):
            raise RuntimeError(reason)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run_folder.load_state(tmp_path)["state"] == "failed"
    assert os.listdir(tmp_path) == ["state.json"]


def test_the_first_error_is_the_one_that_is_told(tmp_path):
    (tmp_path / "curve.png").mkdir()  # so that the picture cannot be written either
    with pytest.raises(FloatingPointError):
        record(train(FloatingPointError()), tmp_path, 1000 * CALLS)
    with pytest.raises(UserError, match=r"curve\.png: cannot write: Is a directory"):
        record(train(), tmp_path, 1000 * CALLS)


class Saved:
    """Stands for `Checkpoints`: notes what it saves."""

    def __init__(self):
        self.rows = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def is_due(self, row):
        return True

    def save(self, state, row):
        self.rows.append(row["updates"])


def moved(folder):
    folder.rename(folder.with_name("elsewhere"))


def replaced(folder):
    """As by `rm -rf RUN` and another start with --run RUN."""
    shutil.rmtree(folder)
    folder.mkdir()
    other = {"state": "running", "host": "another", "pid": os.getpid(), "started": 1.0}
    (folder / "state.json").write_text(json.dumps(other))


@pytest.mark.parametrize("change", [moved, shutil.rmtree, replaced])
def test_a_folder_that_is_its_own_no_more_ends_a_run(tmp_path, change):
    """Nothing is written into the folder of another run, nor into an empty one."""
    folder, saves, ended = tmp_path / "run", Saved(), []
    folder.mkdir()
    updates = record_updates(
        train(ended=ended), folder, 1000 * CALLS, checkpoints=saves
    )
    with pytest.raises(UserError, match="run: was moved, removed or replaced while"):
        for _, row in updates:
            if row["updates"] == 3:
                change(folder)
                state = [*folder.glob("state.json")] and read_state(folder)
    assert saves.rows == [1, 2] and ended
    assert state == ([*folder.glob("state.json")] and read_state(folder))
    if change is moved:
        assert read_state(folder.with_name("elsewhere"))["state"] == "running"


def read_state(folder):
    return json.loads((folder / "state.json").read_text())


def test_a_picture_now_and_then(tmp_path, monkeypatch):
    drawn, clock = [], iter(range(0, 10_000, 2))  # each look at the clock takes 2 s
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(plot, "save", lambda *_: drawn.append(1))
    record(train(), tmp_path, 1000 * CALLS, quiet=True)
    assert 1 < len(drawn) < CALLS / 4


def test_a_run_goes_on_while_its_curve_is_drawn(tmp_path, monkeypatch):
    """The first picture is not done before the loop's last row is; a second one waits."""
    trained, drawn = threading.Event(), []

    def save(*_):
        if not drawn:  # in a thread of its own
            drawn.append(threading.current_thread().name)
            assert trained.wait(60)
        drawn.append(threading.current_thread().name)

    def rows():
        yield from train()
        trained.set()

    monkeypatch.setattr(drawing, "DRAW_SECONDS", 0.0)
    monkeypatch.setattr(plot, "save", save)
    record(rows(), tmp_path, 1000 * CALLS, quiet=True)
    assert drawn == ["curve", "curve", "MainThread"]


def test_a_curve_that_cannot_be_drawn_ends_the_run(tmp_path, monkeypatch):
    """At the next row, not only at the end."""
    monkeypatch.setattr(drawing, "DRAW_SECONDS", 0.0)
    (tmp_path / "curve.png").mkdir()

    def rows():
        for row in train():
            yield row
            for thread in threading.enumerate():
                if thread.name == "curve":
                    thread.join(60)

    with pytest.raises(UserError, match=r"curve\.png: cannot write: Is a directory"):
        record(rows(), tmp_path, 1000 * CALLS, quiet=True)
    assert len(returns(tmp_path)) < CALLS / 2


def test_the_end_does_not_wait_for_ever_for_a_picture(tmp_path, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(drawing, "DRAW_SECONDS", 0.0)
    monkeypatch.setattr(drawing, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(plot, "save", lambda *_: hang.wait(60))
    try:
        with pytest.raises(UserError, match="not drawn: the last picture still is"):
            record(train(), tmp_path, 1000 * CALLS, quiet=True)
    finally:
        hang.set()


def test_the_printed_mean_return_is_the_curves_label(tmp_path, capsys, monkeypatch):
    """Few episodes a row, at rates that change, and in a resumed run."""
    pictures = []
    monkeypatch.setattr(plot, "save", lambda picture, _: pictures.append(picture))

    def rows(first, last):
        for call in range(first, last):
            row = next(train())[1]
            row |= {"steps": 1000 * call, "updates": call}
            mean = call**2 / 7 if call % 7 else math.nan
            yield call, row | {"episodes": call % 7, "episode_return": mean}

    for first, last in ((1, 200), (200, 203)):
        record(rows(first, last), tmp_path, 1000 * last)
        (text,) = pictures[-1].axes[0].texts
        said = capsys.readouterr().out.splitlines()[-1]
        assert f"mean return {text.get_text()}," in said, text


@pytest.mark.parametrize(
    "number, code, line",
    [
        (signal.SIGINT, 130, "anakin: interrupted\n"),
        (signal.SIGTERM, 143, "anakin: terminated\n"),
        (signal.SIGHUP, 129, "anakin: terminated\n"),
    ],
)
def test_a_signal(tmp_path, number, code, line):
    program = f"""
import itertools, sys, time
sys.path[:0] = [{os.path.dirname(__file__)!r}, "."]
from test_recording import record, train
from podracer.command import exits
def slow():
    for update in train():
        yield update
        time.sleep(0.2)
with exits("anakin"):
    record(slow(), {str(tmp_path)!r}, 10**6)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "metrics.jsonl").exists() or len(returns(tmp_path)) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, error = process.communicate(timeout=400)
    assert (process.returncode, error) == (code, line)
    assert 3 <= len(returns(tmp_path)) < CALLS
    assert is_png(tmp_path / "curve.png")
