"""A run folder: made whole or not at all, and no run is lost by mistake."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from podracer.errors import UserError
from podracer.runs import run_folder


@dataclasses.dataclass(frozen=True)
class Network:
    hidden_sizes: tuple[int, ...] = (64, 32)


@dataclasses.dataclass(frozen=True)
class Train:
    network: Network = Network()
    run: os.PathLike | None = None
    steps: int = 2**40


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def contents(path):
    return {
        p.relative_to(path): p.is_file() and p.read_bytes() for p in path.rglob("*")
    }


def test_config_is_kept(tmp_path):
    config = {"env": "catch", "train": Train(run=tmp_path)}
    folder = run_folder.create(tmp_path / "a" / "b", config)
    description = run_folder.load_config(folder)
    assert description["config"] == {
        "env": "catch",
        "train": {
            "network": {"hidden_sizes": [64, 32]},
            "run": str(tmp_path),
            "steps": 2**40,
        },
    }
    assert description["versions"].keys() == {"podracer", "python", "jax", "jaxlib"}
    assert description["command"]
    assert sorted(os.listdir(folder)) == [".lock", "config.json"]


def test_names_of_new_folders_never_meet():
    folders = {run_folder.create(None, {}, name="impala-ALE/Pong-v5") for _ in range(5)}
    assert len(folders) == 5
    assert {folder.parent.name for folder in folders} == {"runs"}
    assert all(folder.name.startswith("impala-ALE-Pong-v5-2") for folder in folders)


@pytest.mark.parametrize("content", run_folder.CONTENTS)
def test_a_run_is_not_touched(tmp_path, content):
    (tmp_path / content).write_text("precious")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"holds a run already.*--overwrite"):
        run_folder.create(tmp_path, {})
    assert contents(tmp_path) == before


def test_overwrite_removes_what_a_run_wrote_and_nothing_else(tmp_path):
    run_folder.create(tmp_path, {"seed": 1})
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    run_folder.create(tmp_path, {"seed": 2}, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == [".lock", "config.json", "notes.txt"]
    assert run_folder.load_config(tmp_path)["config"] == {"seed": 2}


def test_overwrite_spares_a_run_that_another_process_writes(tmp_path):
    run_folder.create(tmp_path, {"seed": 1})
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    before = contents(tmp_path)
    with (
        run_folder.held(tmp_path),
        pytest.raises(UserError, match="another process is writing this run"),
    ):
        run_folder.create(tmp_path, {"seed": 2}, overwrite=True)
    assert contents(tmp_path) == before | {Path(".lock"): b""}


def test_a_run_is_held_from_before_its_first_file_to_its_end(tmp_path):
    with run_folder.created(tmp_path / "run", {}) as folder:
        assert run_folder.is_held(folder)
    assert not run_folder.is_held(folder)


def test_what_came_of_the_old_run_is_removed_with_it(tmp_path):
    for name in run_folder.RESULTS:
        (tmp_path / name).write_text("kept: no run of ours wrote it here")
    run_folder.create(tmp_path, {}, overwrite=True)
    assert {*os.listdir(tmp_path)} == {".lock", "config.json", *run_folder.RESULTS}
    run_folder.create(tmp_path, {}, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == [".lock", "config.json"]


def test_an_error_of_the_users_code_is_not_one_of_the_folder(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="level 3"),
        run_folder.held(tmp_path),
    ):
        raise FileNotFoundError("level 3")


@pytest.mark.parametrize("config", ["{}", "[]", "{", '{"model": "somebody else\'s"}'])
def test_overwrite_spares_what_is_not_a_run(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "metrics.jsonl").write_text("theirs")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"config\.json: damaged, or not"):
        run_folder.create(tmp_path, {}, overwrite=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("path", ["file", "file/run", "/proc/run", "/dev/full"])
def test_a_place_that_cannot_be_written(tmp_path, path):
    (tmp_path / "file").write_text("a file")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=rf"^{path}: cannot write: \w"):
        run_folder.create(path, {})
    assert contents(tmp_path) == before


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_is_left_when_the_disk_is_full(tmp_path, monkeypatch, exists):
    if exists:
        run_folder.create(tmp_path / "run", {"seed": 1})
        (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    before = contents(tmp_path)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    monkeypatch.setattr(run_folder.Path, "write_text", no_space)
    with pytest.raises(UserError, match="No space left on device"):
        run_folder.create(tmp_path / "run", {"seed": 2}, overwrite=True)
    assert contents(tmp_path) == before


def test_not_a_run(tmp_path):
    with pytest.raises(UserError, match=r"config\.json: No such file.*not a run\?"):
        run_folder.load_config(tmp_path)
    with pytest.raises(UserError, match=rf"a checkpoint\? name its run, {tmp_path}$"):
        run_folder.load_config(tmp_path / "checkpoints/7")


def test_of_several_runs_the_first_is_named(tmp_path):
    for seed in (1, 0):
        run_folder.create(tmp_path / f"seed-{seed}", {})
    with pytest.raises(UserError, match=rf"name one of its runs, {tmp_path}/seed-0$"):
        run_folder.load_config(tmp_path)


def test_a_program_started_as_a_module_has_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/x/anakin/__main__.py", "train", "--run", "a b"])
    folder = run_folder.create(tmp_path, {})
    command = json.loads((folder / "config.json").read_text())["command"]
    assert command == "anakin train --run 'a b'"


@pytest.mark.parametrize("name", ["ppo [lr 1e-3]", "a*b", "what?", "a\\b"])
def test_a_path_that_is_a_pattern_to_orbax_is_refused(name, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"has '[\[*?\\]+' in its path"):
        run_folder.check_startable(tmp_path / name / "run", False)
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    with pytest.raises(UserError, match="choose another folder"):
        run_folder.check_startable(None, False)
