"""Checkpoints that their run removes while they are read."""

import asyncio
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from podracer.checkpoints import checksums, finding, quiet, reading
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.errors import UserError


@pytest.fixture
def folder(tmp_path):
    """One checkpoint, 5, which Orbax could not read."""
    (tmp_path / "5" / "state").mkdir(parents=True)
    (tmp_path / "5" / "state" / "data").write_bytes(b"1234")
    checksums.write(tmp_path / "5")
    return tmp_path


def replace(folder):
    """What a run does that keeps one checkpoint."""
    (newest,) = finding.find_checkpoints(folder)
    (folder / str(newest)).rename(folder / str(newest + 1))


def restoring(monkeypatch, folder, failures, act=replace):
    """Reads as Orbax does, where the first `failures` readings fail after `act`."""
    read = []

    def read_shared(item, shared):
        read.append(int(item.parent.name))
        if len(read) <= failures:
            act(folder)
            raise Exception("Encountered error while reading array")  # noqa: TRY002  (Orbax does)
        return "read"

    monkeypatch.setattr(reading, "read_shared", read_shared)
    return Checkpoints(folder), read


@pytest.mark.core
def test_the_newest_is_chosen_again(monkeypatch, folder):
    checkpoints, read = restoring(monkeypatch, folder, failures=2)
    assert checkpoints.restore_shared(None) == "read"
    assert read == [5, 6, 7] and checkpoints.restored_updates == 7


@pytest.mark.core
def test_a_part_that_is_removed_is_enough(monkeypatch, folder):
    (folder / "4" / "state").mkdir(parents=True)
    checksums.write(folder / "4")
    act = lambda folder: (folder / "5" / "state" / "data").unlink()
    checkpoints, read = restoring(monkeypatch, folder, failures=1, act=act)
    assert checkpoints.restore_shared(None) == "read" and read == [5, 4]


@pytest.mark.core
def test_at_last_it_is_one_line(monkeypatch, folder):
    checkpoints, read = restoring(monkeypatch, folder, failures=99)
    line = "/9: was removed by the run while it was read; .* raise --checkpoint.keep$"
    with pytest.raises(UserError, match=line):
        checkpoints.restore_shared(None)
    assert read == [5, 6, 7, 8, 9] and len(read) == finding.ATTEMPTS


@pytest.mark.core
def test_a_named_one_is_not_replaced_by_another(monkeypatch, folder):
    checkpoints, read = restoring(monkeypatch, folder, failures=99)
    with pytest.raises(UserError, match="/5: was removed by the run while"):
        checkpoints.restore_shared(None, 5)
    assert read == [5]


@pytest.mark.core
def test_an_error_about_a_whole_one_is_told(monkeypatch, folder):
    act = lambda folder: None
    checkpoints, read = restoring(monkeypatch, folder, failures=1, act=act)
    with pytest.raises(Exception, match="^Encountered"):
        checkpoints.restore_shared(None)
    assert read == [5]


@pytest.mark.core
@pytest.mark.parametrize("updates", [None, 5])
def test_one_that_is_removed_while_it_is_verified_is_not_damaged(
    monkeypatch, capsys, folder, updates
):
    problem = checksums.find_problem

    def verified(path):
        if path.name == "5":
            replace(folder)
        return problem(path)

    monkeypatch.setattr(checksums, "find_problem", verified)
    if updates is None:
        assert finding.choose_to_read(folder, updates) == 6
    else:
        with pytest.raises(UserError, match="/5: was removed by the run while"):
            finding.choose_to_read(folder, updates)
    assert not capsys.readouterr().out


def raised(file):
    """What a coroutine raised whose code is in `file`."""
    names = {}
    exec(compile("async def read(): raise ValueError", file, "exec"), names)  # noqa: S102
    try:
        asyncio.run(names["read"]())
    except ValueError as error:
        while error.__traceback__.tb_frame.f_code.co_filename != file:
            error.__traceback__ = error.__traceback__.tb_next
        return error


@pytest.mark.core
def test_what_orbax_leaves_behind_is_dropped_and_nothing_else(monkeypatch, caplog):
    seen, logger = [], logging.getLogger("asyncio")
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    monkeypatch.setattr(logger, "filters", [])
    quiet.drop_late_callbacks.__wrapped__()
    closed = RuntimeError("Event loop is closed")
    for error in (raised("/x/orbax/y.py"), closed, raised("/x/own.py")):
        late = SimpleNamespace(
            exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__
        )
        sys.unraisablehook(late)
        logger.error("never retrieved", exc_info=error)
    assert [x.exc_value for x in seen] == [error]
    assert [x.exc_info[1] for x in caplog.records] == [closed, error]


READS_WHAT_IS_REMOVED = """
import sys
from pathlib import Path
import jax
from podracer.checkpoints import quiet
from orbax import checkpoint

folder = Path(sys.argv[1]) / "state"
keys = jax.random.split(jax.random.key(0), 60)
state = {str(i): jax.random.normal(key, (300, 300)) for i, key in enumerate(keys)}
checkpointer = checkpoint.Checkpointer(checkpoint.StandardCheckpointHandler())
checkpointer.save(folder, args=checkpoint.args.StandardSave(state))
for path in folder.rglob("d/*"):
    path.unlink()
quiet.drop_late_callbacks()
for _ in range(3):
    try:
        checkpointer.restore(folder, args=checkpoint.args.StandardRestore(state))
    except Exception:
        print("failed")
"""


def test_a_read_that_fails_leaves_no_tracebacks(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", READS_WHAT_IS_REMOVED, tmp_path],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout == 3 * "failed\n"
    assert "Traceback" not in ended.stderr
