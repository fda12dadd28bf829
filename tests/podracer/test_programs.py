"""Compiled programs are kept between runs, in a folder that only the user can write to."""

import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import jax
import pytest

from anakin.command import meta_train
from anakin.command import subcommands as anakin
from podracer import command
from podracer.command import programs
from podracer.errors import UserError
from podracer.parallel import hosts
from sebulba.command import subcommands as sebulba

NAMES = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
)
SCRIPT = """
import sys
from podracer import command
command.keep_programs()
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
print(float(jax.jit(lambda x: jnp.sin(x).sum())(jnp.arange(4.0))))
print(sum("cache_hits" in event for event in found))
"""


@pytest.fixture(autouse=True)
def unset(tmp_path, monkeypatch):
    """No folder is chosen yet; the user's own is `tmp_path`."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def kept(tmp_path) -> Path | None:
    """The folder after `keep_programs`."""
    programs.keep_programs()
    chosen = jax.config.jax_compilation_cache_dir
    assert chosen is None or Path(chosen).parent == tmp_path / "podracer" / "programs"
    return None if chosen is None else Path(chosen)


def in_a_process() -> str:
    """What SCRIPT prints: a number, and how many programs it found."""
    environment = {k: v for k, v in os.environ.items() if k != NAMES[0].upper()}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_second_process_finds_the_programs_of_the_first():
    (number, none), (again, hits) = (in_a_process().split() for _ in range(2))
    assert number == again and none == "0" and int(hits) > 0


def test_only_the_user_can_write_to_the_folder(tmp_path):
    folder = kept(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    jax.config.update("jax_compilation_cache_dir", None)
    folder.chmod(0o770)
    assert kept(tmp_path) is None


def test_a_choice_of_the_user_is_respected(tmp_path):
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    programs.keep_programs()
    assert jax.config.jax_compilation_cache_dir == "elsewhere"
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    assert kept(tmp_path) is None


def test_several_processes_keep_none(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "number_of", lambda: 2)
    assert kept(tmp_path) is None


@pytest.mark.parametrize("place", ["file", "read-only", "no home"])
def test_without_a_folder_there_is_none(tmp_path, monkeypatch, place):
    if place == "file":
        (tmp_path / "podracer").write_text("")
    elif place == "read-only":
        monkeypatch.setattr(Path, "mkdir", refuse)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", no_home)
    assert kept(tmp_path) is None


def test_programs_are_kept_where_none_can_be_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "remove_unused", refuse)
    assert kept(tmp_path) is not None


def refuse(*_, **__):
    raise PermissionError("read-only")


def no_home():
    raise RuntimeError("no home")


def test_cpus_have_folders_of_their_own(tmp_path, monkeypatch):
    first = kept(tmp_path)
    jax.config.update("jax_compilation_cache_dir", None)
    other = tmp_path / "cpuinfo"
    other.write_text("flags : sse avx9999\nflags : sse avx9999\n")
    monkeypatch.setattr(programs, "CPU", other)
    assert kept(tmp_path) != first


def test_unused_programs_are_removed(tmp_path):
    folder = kept(tmp_path)
    old = time.time() - (programs.DAYS + 1) * 24 * 3600
    for name, read, written in (
        ("unused", old, old),
        ("read", time.time(), old),
        ("written", old, time.time()),
    ):
        (folder / name).write_text("")
        os.utime(folder / name, (read, written))
    programs.remove_unused(folder)
    assert {x.name for x in folder.iterdir()} == {"checked", "read", "written"}


def test_half_written_programs_are_removed_and_compiled_again(tmp_path):
    first, again = in_a_process(), in_a_process()
    (folder,) = (tmp_path / "podracer" / "programs").iterdir()
    files = [*folder.glob("*-cache")]
    for path in files:
        path.write_bytes(path.read_bytes()[:-1])
    repaired, after = in_a_process(), in_a_process()
    assert [x.split()[1] for x in (first, again, repaired, after)] == [
        *("0", str(len(files)), "0", str(len(files)))
    ]


@pytest.mark.parametrize(
    ("program", "stays"),
    [
        (zlib.compress(b"program"), True),
        (zlib.compress(b"program")[:-1], False),
        (zlib.compress(b"program").replace(b"\x9c", b"\x9c\x00"), False),
        (b"", False),
        (programs.ZSTANDARD + b"program", True),
    ],
)
def test_damaged_programs_are_removed(tmp_path, program, stays):
    path = tmp_path / "jit_f-0-cache"
    path.write_bytes(program)
    programs.remove_damaged(tmp_path)
    assert path.exists() == stays


def test_programs_are_checked_once(tmp_path):
    programs.remove_damaged(tmp_path)
    for name, age in (("old", 60.0), ("new", -60.0)):
        path = tmp_path / f"{name}-cache"
        path.write_bytes(b"damaged")
        os.utime(path, 2 * (time.time() - age,))
    programs.remove_damaged(tmp_path)
    assert {x.name for x in tmp_path.iterdir()} == {"old-cache", "checked"}


@pytest.mark.parametrize(
    "main",
    [
        *(anakin.train, sebulba.train, meta_train.main),
        *(anakin.evaluate, sebulba.evaluate, anakin.render, sebulba.render),
    ],
)
def test_commands_that_compile_keep_programs(monkeypatch, main):
    monkeypatch.setattr(command, "keep_programs", called)
    with pytest.raises(UserError, match="called"):
        main(["--env", "catch"])


def called():
    raise UserError("called")
