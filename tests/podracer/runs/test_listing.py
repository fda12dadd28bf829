"""`podracer runs` and `podracer plot`: from folders to a table and a picture."""

import fcntl
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import podracer.__main__ as command
from podracer.errors import UserError
from podracer.metrics import JsonLines
from podracer.runs import listing, plot, run_folder
from podracer.runs.recording import record_updates


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make(name, rows, agent="impala", **train):
    folder = run_folder.create(
        name, {"agent": agent, "env": "catch", "train": {"seed": 0} | train}
    )
    with JsonLines(folder / "metrics.jsonl") as lines:
        for row in rows:
            lines.write(row)
    return folder


def rows(level, count=30, **more):
    for i in range(1, count + 1):
        yield {
            "steps": 1000 * i,
            "seconds": 2.0,
            "episodes": 5,
            "episode_return": level,
        } | more


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def test_a_picture_of_two_agents_and_two_seeds(capsys):
    for seed in (0, 1):
        make(f"runs/impala-{seed}", rows(1.0 + seed), seed=seed)
        make(f"runs/ppo-{seed}", rows(2.0, 20 + 10 * seed), "ppo", seed=seed)
    command.plot(["runs", "--out", "both.png"])
    assert lines_of(capsys) == [
        "impala on catch: 2 runs",
        "ppo on catch: 2 runs, to 20,000 steps, where runs/ppo-0 ends",
        "drawn in both.png",
    ]
    with Image.open("both.png") as image:
        assert image.format == "PNG"
    command.plot(["runs/impala-0", "runs/ppo-1", "--by", "seed", "--x", "seconds"])
    assert lines_of(capsys) == ["seed 0: 1 run", "seed 1: 1 run", "drawn in curves.png"]
    for name, flags in {
        "profile": ["--profile"],
        "iqm": ["--statistic", "iqm"],
    }.items():
        command.plot(["runs", *flags, "--out", f"{name}.png"])
        assert lines_of(capsys)[-1] == f"drawn in {name}.png"
        with Image.open("both.png") as curves, Image.open(f"{name}.png") as other:
            assert curves.tobytes() != other.tobytes()
    make("again/ppo-1", rows(2.0), "ppo", seed=1)
    command.plot(["runs/ppo-1", "again/ppo-1"])
    assert lines_of(capsys)[0] == "ppo on catch: 2 runs, not all of different seeds"


def test_a_run_that_is_named_twice_counts_once(capsys):
    make("runs/a", rows(1.0))
    make("runs/b", rows(2.0), seed=1)
    os.symlink("a", "runs/same")
    command.plot(["runs/b", "runs", "runs/a", "runs/../runs/b"])
    assert lines_of(capsys)[0] == "impala on catch: 2 runs"


def test_what_is_not_a_number_is_not_drawn(capsys):
    full = make("full", [*rows(1.0, 3), *rows(math.nan, 4)])
    make("empty", [])
    make("other", rows(1.0, kl=0.5))
    os.remove(make("none", []) / "metrics.jsonl")
    (run,) = listing.find([full])
    assert listing.points(run, "steps", "episode_return").tolist() == [
        [1000 * i, 1, 5] for i in (1, 2, 3)
    ]
    assert listing.points(run, "seconds", "episode_return")[:, 0].tolist() == [2, 4, 6]
    command.plot(["full", "empty", "none", "other", "--y", "kl", "--out", "kl.svg"])
    assert lines_of(capsys) == [
        "full: no kl yet, left out",
        "empty: no kl yet, left out",
        "none: no kl yet, left out",
        "impala on catch: 1 run",
        "drawn in kl.svg",
    ]


def test_a_damaged_line_is_named_and_the_rest_is_drawn(capsys):
    folder = make("run", rows(1.0, 3))
    text = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(
        text + b"\xff\xfe\n" + 9 * b"\0" + b"\n[1]\n"
    )
    command.plot(["run"])
    assert lines_of(capsys) == [
        "run/metrics.jsonl: left out 3 lines that cannot be read: reports after step 3,000",
        "impala on catch: 1 run",
        "drawn in curves.png",
    ]


@pytest.mark.parametrize(
    "arguments, line",
    [
        ([], "which runs?"),
        (["missing"], "missing/config.json: No such file"),
        (["nothing"], "nothing: holds no run"),
        (["foreign"], "foreign/config.json: damaged, or not the configuration"),
        (["damaged"], "no run has any episode_return"),
        (["list"], "no run has any episode_return"),
        (["run", "--y", "kl"], "no run has any kl"),
        (["run", "--y", "episode_retrun"], "did you mean 'episode_return'?"),
        (["run", "--by", "sede"], "no 'sede'; did you mean 'seed'?"),
        (["run", "--out", "curves.pdf"], "--out is curves.pdf"),
        (["run", "--profile", "--statistic", "iqm"], "leave out --statistic and --x"),
        (["run", "--profile", "--x", "seconds"], "leave out --statistic and --x"),
        (["run", "--out", "nowhere/x.png"], "nowhere/x.png: cannot write: No such"),
        (["run", "--x", "minutes"], "'minutes'"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, line):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    make("run", rows(1.0))
    (make("damaged", []) / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    (make("list", []) / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(UserError) as raised:
        command.plot(arguments)
    assert line in str(raised.value)


def test_fields_of_the_configuration():
    make("run", [], agent_config={"a": 1}, batch_size=4)
    (run,) = listing.find(["run"])
    names = ("agent", "batch-size", "agent_config.a")
    assert [listing.field(run, name) for name in names] == ["impala", 4, 1]


def metrics(steps):
    return {
        "steps": steps,
        "updates": steps,
        "seconds": 1.0,
        "steps_per_second": 1.0,
        "compile_seconds": 0.0,
        "episodes": 1,
        "episode_return": 0.5,
    }


def recorded(name, seen=None, end=None):
    """The state of a run of 2 steps that ended in this way."""
    folder = run_folder.create(name, {"agent": "ppo", "env": "catch", "train": {}})

    def train():
        yield "state", metrics(1)
        if seen is not None:
            seen.append(run_folder.load_state(folder)["state"])
        if isinstance(end, BaseException):
            raise end
        if end != "early":
            yield "state", metrics(2)

    try:
        with run_folder.held(folder):
            list(record_updates(train(), folder, 2, quiet=True))
    except (KeyboardInterrupt, FloatingPointError) as error:
        assert error is end
    return run_folder.load_state(folder)


def test_how_a_run_ended():
    seen = []
    assert recorded("whole", seen)["state"] == "finished"
    assert seen == ["running"]
    assert recorded("early", end="early")["state"] == "stopped"
    assert recorded("interrupted", end=KeyboardInterrupt())["state"] == "stopped"
    failed = recorded("broken", end=FloatingPointError("update 7"))
    assert (failed["state"], failed["error"]) == ("failed", "update 7")


def test_a_process_that_was_killed_runs_no_more():
    folder = make("run", rows(1.0))
    program = f"""
import os, sys
from pathlib import Path
from podracer.runs import recording, run_folder
folder = Path({str(folder.resolve())!r})
with run_folder.held(folder), recording.track_state(folder, 0):
    print("began", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout.readline() == b"began\n"
        assert run_folder.load_state(folder)["state"] == "running"
    finally:
        process.kill()
        process.communicate(timeout=200)
    assert run_folder.load_state(folder)["state"] == "stopped"


def test_looking_does_not_hold_a_run():
    folder = make("run", [])
    with run_folder.held(folder):
        assert run_folder.is_held(folder)
    assert not run_folder.is_held(folder)
    with open(folder / run_folder.LOCK) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_list(capsys):
    recorded("runs/b")
    recorded("runs/a", end=KeyboardInterrupt())
    make("runs/old", rows(1.0, 3), seed=7)  # from before states were kept
    (make("runs/damaged", []) / "metrics.jsonl").write_text("?\n")
    command.list_runs([])
    header, *lines = (line.split() for line in lines_of(capsys))
    assert header == [*listing.COLUMNS]
    assert {line[-1]: line[:-2] for line in lines} == {
        "runs/b": ["finished", "ppo", "catch", "-", "2", "0.5"],
        "runs/a": ["stopped", "ppo", "catch", "-", "1", "0.5"],
        "runs/old": ["unknown", "impala", "catch", "7", "3k", "1"],
        "runs/damaged": ["unknown", "impala", "catch", "0", "-", "-"],
    }
    assert [line[-1] for line in lines][2:] == ["runs/b", "runs/a"]  # as they began


def test_the_seeds_of_a_program_are_one_line(capsys):
    for seed, level in enumerate((1.0, 2.0, 6.0)):
        make(f"runs/many/seed-{seed}", rows(level), seed=seed)
    make("runs/many/rate-1e-3-seed-0", rows(7.0))
    make("runs/many/seed-3", rows(9.0, 2), seed=3)  # has not come so far
    make("runs/apart/seed-0", rows(1.0))
    make("runs/apart/seed-1", rows(1.0))
    run_folder.rewrite_config("runs/many", {}, run_folder.TOGETHER)
    command.list_runs([])
    listed = {x.split()[-1]: x.split()[3:6] for x in lines_of(capsys)[1:]}
    assert listed == {
        "runs/apart/seed-0": ["0", "30k", "1"],
        "runs/apart/seed-1": ["0", "30k", "1"],
        "runs/many/rate-1e-3-seed-0": ["0", "30k", "7"],
        "runs/many/seed-*": ["0-2", "30k", "3"],
        "runs/many/seed-3": ["3", "2k", "9"],
    }


def test_a_long_path_is_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = f"runs/{'long-' * 30}"
    make(path, rows(1.0))
    command.list_runs([])
    assert lines_of(capsys)[1].endswith(f"  {path}")


def test_odd_names_are_harmless(capsys):
    make("runs/a", rows(1.0), agent="a \ud800\n\x1b[31m")
    make("runs/b", rows(1.0), agent=r"$\foo$")
    for flags in ([], ["--profile"]):
        command.plot(["runs", *flags])
    command.plot(["runs/b"])  # its name is the title
    command.list_runs([])
    text = capsys.readouterr().out
    text.encode()
    assert r"a \ud800\n\x1b[31m on catch: 1 run" in text.splitlines()
    assert r"$\foo$ on catch: 1 run" in text.splitlines()
    assert text.splitlines()[-2].split()[1:3] == ["a", r"\ud800\n\x1b[31m"]


def test_a_name_is_drawn_as_it_is_written():
    names = [r"$\foo$", r"\$1 and $2$"]
    points = np.array([[1.0, 2.0, 1.0], [2.0, 2.0, 1.0]])
    for picture in (
        plot.compare({name: [points] for name in names}),
        plot.profiles({name: [points] for name in names}),
    ):
        picture.canvas.draw()
        for text, name in zip(picture.legends[0].get_texts(), names):
            plain, is_math = text._preprocess_math(text.get_text())
            assert plain.startswith(name) and not is_math


def test_a_name_too_long_for_a_file_is_one_line():
    with pytest.raises(UserError, match="File name too long; not a run"):
        command.list_runs(["x" * 300])
    with pytest.raises(UserError, match="x: cannot write: File name too long"):
        run_folder.check_startable(Path("x" * 300), overwrite=False)


@pytest.mark.parametrize(
    "seconds, age",
    [(-9, "-"), (0, "0s"), (59, "59s"), (120, "2m"), (7200, "2h"), (6e5, "7d")],
)
def test_ages(seconds, age):
    assert listing._age(seconds) == age


def test_the_configuration_is_not_needed_whole():
    run_folder.create("run", {"agent": "x"})
    (line,) = listing.table(listing.find(["run"]))
    assert line[1:4] == ("x", "-", "-")
