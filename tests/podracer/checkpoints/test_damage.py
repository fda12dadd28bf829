"""Damage to any one file of a checkpoint costs that checkpoint at most."""

import functools
import os
import random
import shutil

import jax
import numpy as np
import pytest

from podracer.checkpoints import checksums, finding
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.checkpoints.checksums import FILE as CHECKSUMS
from podracer.checkpoints.checksums import METADATA
from podracer.errors import UserError
from tests.podracer.checkpoints.test_checkpoint import LAYOUT, make_state, save

state = functools.cache(make_state)


def flip(path):
    data = bytearray(path.read_bytes())
    data[random.Random(path.name).randrange(len(data))] ^= 1 << 3
    path.write_bytes(data)


def replace_by(text):
    return lambda path: path.write_text(text)


def make_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "a flipped bit": flip,
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "gone": lambda path: path.unlink(),
    "a folder": make_folder,
    "null": replace_by("null"),
    "list": replace_by("[]"),
    "dict": replace_by("{}"),
    "other JSON": replace_by('{"metrics": {"a": [1]}, "episode_return": "x"}'),
    "deep JSON": replace_by("[" * 100_000),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints 5 and 6."""
    folder = tmp_path_factory.mktemp("saved") / "all"
    save(folder, 5, 6, returns={5: 1.0, 6: 2.0})
    return folder


def is_harmless(name):
    """Whether it touches what Orbax writes after the checksums, and nothing reads: a marker
    file, and its metadata."""
    return str(name) in ("commit_success.txt", METADATA)


def files_of(folder):
    return sorted(
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file()
    )


def assert_restored(folder, updates):
    after = Checkpoints(folder).restore(state(0), LAYOUT)
    for x, y in zip(*map(jax.tree.leaves, (after, state(updates))), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named_and_an_older_checkpoint_used(
    saved, tmp_path, capsys, damage
):
    """Every file in turn; the whole way of a resumed run for the largest of them."""
    whole = files_of(saved / "6")
    assert len(whole) > 12
    for number, name in enumerate(whole):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        damage(folder / "6" / name)
        newest, _ = finding.choose_to_resume(folder)
        said = capsys.readouterr().out.splitlines()
        if newest == 6:
            assert is_harmless(name) and not said
            assert_restored(folder, 6)
            continue
        (line,) = said
        assert newest == 5 and f"{folder / '6'}: damaged (" in line
        assert name.name in line or "checksums" in str(name), line
        assert not (folder / "6").exists() and (folder / "6.damaged").exists()
    assert newest == 5
    assert_restored(folder, 5)
    save(folder, 6, 7)  # Orbax would skip 6 if the damaged one were still there
    assert_restored(folder, 7)
    assert [n for n, problem in finding.find_problems(folder) if not problem] == [
        7,
        6,
        5,
    ]


@pytest.mark.core
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_where_none_is_left_one_line_names_the_damage(saved, tmp_path, capsys, damage):
    for number, name in enumerate(files_of(saved / "6")):
        folder = tmp_path / str(number)
        shutil.copytree(saved / "6", folder / "6")
        damage(folder / "6" / name)
        if is_harmless(name) and finding.find_newest(folder)[0] == 6:
            continue
        with pytest.raises(UserError) as error:
            Checkpoints(folder).restore(state(0), LAYOUT)
        line = str(error.value)
        assert "no whole checkpoint (6 is damaged (" in line and "\n" not in line
        with pytest.raises(UserError, match="6 is damaged .*; train the agent first"):
            Checkpoints(folder).restore_shared(state(0).shared)
        assert (folder / "6").exists() and not capsys.readouterr().out


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_to_an_older_checkpoint_stops_nothing(saved, tmp_path, damage):
    """Neither its metrics nor its metadata are needed to keep the best one."""
    for number, name in enumerate(("metrics/metrics", METADATA, CHECKSUMS)):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        damage(folder / "5" / name)
        save(folder, 7, keep=1)
        assert_restored(folder, 7)
        assert 6 in finding.find_checkpoints(folder)  # the best one


@pytest.mark.core
def test_a_second_damaged_checkpoint_of_the_same_name_replaces_the_first(
    saved, tmp_path
):
    shutil.copytree(saved, tmp_path / "all")
    (tmp_path / "all" / "6.damaged").mkdir()
    flip(tmp_path / "all" / "6" / "state" / "manifest.ocdbt")
    assert_restored(tmp_path / "all", 5)
    assert (tmp_path / "all" / "6.damaged" / "state").exists()


def test_other_names_are_no_checkpoints(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "all")
    for name in ("07", "7.damaged", "8.orbax-checkpoint-tmp", "²", "9x"):
        (tmp_path / "all" / name).mkdir()
    (tmp_path / "all" / "10").touch()
    assert finding.find_checkpoints(tmp_path / "all") == [6, 5]
    assert_restored(tmp_path / "all", 6)
    assert finding.find_checkpoints(tmp_path / "nowhere") == []


@pytest.mark.core
@pytest.mark.parametrize("late", [b"", b'{"item_hand', b'{"metrics": null}'])
def test_metadata_that_orbax_writes_late_is_no_damage(tmp_path, late):
    """Orbax's thread may be in the middle of it when a checkpoint is read or a run killed."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "data").write_bytes(b"1234")
    (tmp_path / METADATA).write_bytes(b'{"metrics": 1}')
    checksums.write(tmp_path)
    (tmp_path / METADATA).write_bytes(late)
    assert checksums.find_problem(tmp_path) is None
