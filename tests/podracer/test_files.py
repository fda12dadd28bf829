"""Files in folders that others have filled: nothing is written elsewhere, every read ends."""

import os
import socket

import pytest

from podracer import files, metrics
from podracer.errors import UserError
from podracer.runs import run_folder


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("theirs")
    return path


def test_a_file_is_replaced_and_not_what_it_points_to(tmp_path, victim):
    path = tmp_path / "x.json"
    path.symlink_to(victim)
    (tmp_path / ".x.json.tmp").symlink_to(victim)
    with files.atomic(path) as temporary:
        assert (temporary.parent.stat().st_mode & 0o777) == 0o700
        temporary.write_text("ours")
    assert (path.read_text(), victim.read_text()) == ("ours", "theirs")
    assert not path.is_symlink()
    assert {x.name for x in tmp_path.iterdir()} == {"x.json", ".x.json.tmp", "victim"}


def test_an_error_leaves_what_was_there(tmp_path, victim):
    with pytest.raises(KeyError), files.atomic(victim) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert victim.read_text() == "theirs"
    assert [*tmp_path.iterdir()] == [victim]


@pytest.mark.parametrize("target", ["victim", "new"])
@pytest.mark.parametrize(
    "write",
    [
        lambda path: metrics.JsonLines(path).__enter__(),
        lambda path: run_folder.held(path.parent).__enter__(),
    ],
    ids=["metrics", "lock"],
)
def test_nothing_is_written_through_a_link(write, target, tmp_path, victim):
    path = tmp_path / "run" / ".lock"
    path.parent.mkdir()
    path.symlink_to(tmp_path / target)
    with pytest.raises(UserError, match="cannot write: a link, to somewhere else"):
        write(path)
    assert victim.read_text() == "theirs" and not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", run_folder.FOLDERS)
def test_a_run_does_not_go_on_in_another_folder(name, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path)
    with pytest.raises(UserError, match=f"run/{name}: cannot write: a link"):
        run_folder.held(tmp_path / "run").__enter__()


def bound(path):
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "make, error",
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (bound, "No such device or address"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"1234"), "more than 3 bytes"),
    ],
)
def test_only_files_of_a_sane_size_are_read(make, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    make(path := run_folder.Path("x"))
    with pytest.raises(OSError, match=error):
        files.read(path, most=3)


def test_a_link_to_a_file_is_read(tmp_path, victim):
    """As in the caches of Hugging Face and DVC."""
    (tmp_path / "x").symlink_to(victim)
    assert files.read(tmp_path / "x") == b"theirs"


def test_metrics_beyond_a_sane_size_are_not_read(tmp_path):
    """A file of a tebibyte takes no room on the disk, and its one line would fill memory."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"steps": 1, "updates": 1}\n')
    os.truncate(path, 2**40)
    for read in (metrics.last, lambda path: [*metrics.read(path)]):
        with pytest.raises(OSError, match=f"more than {files.MOST:,} bytes"):
            read(path)
    with pytest.raises(UserError, match="metrics.jsonl: .*more than"):
        metrics.cut(path, 1)
    assert path.stat().st_size == 2**40
