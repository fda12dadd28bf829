"""Ctrl-C while a command is still importing: one line, whichever way it was started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from podracer import interrupts

CTRL_C = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(1)
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A folder whose libraries are interrupted while they are imported."""
    folder = tmp_path_factory.mktemp("libraries")
    for name in ("jax", "tyro"):
        (folder / f"{name}.py").write_text(CTRL_C)
    return folder


@pytest.mark.parametrize("command", interrupts.COMMANDS)
@pytest.mark.parametrize("as_module", [True, False])
def test_ctrl_c_in_an_import_is_one_line(libraries, command, as_module):
    subcommand = "runs" if command == "podracer" else "train"
    script = [str(Path(sys.executable).with_name(command))]
    path = os.pathsep.join([str(libraries), os.getcwd()])
    ended = subprocess.run(
        [sys.executable, *(["-m", command] if as_module else script), subcommand],
        check=False,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == f"{command}: interrupted\n" and ended.returncode == 130


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-m", "anakin", "train"], "anakin"),
        (["-u", "-m", "sebulba"], "sebulba"),
        (["/usr/bin/podracer"], "podracer"),
        (["script.py", "-m", "anakin"], None),
        (["-c", "import anakin"], None),
        (["-m", "pytest", "anakin"], None),
        (["anakin.py"], None),
        ([], None),
    ],
)
def test_a_users_own_program_keeps_its_ctrl_c(monkeypatch, words, command):
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    assert interrupts._program() == command
    before = signal.getsignal(signal.SIGINT)
    try:
        interrupts.answer_early()
        assert (signal.getsignal(signal.SIGINT) is before) == (command is None)
        interrupts.answer_as_usual()
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


SWALLOWING = """
import os, signal
from podracer.command import exits

with exits("anakin"):
    try:  # as parsers of flags and imports of users' modules do
        os.kill(os.getpid(), signal.SIGTERM)
    except (Exception, SystemExit) as error:
        raise ValueError("it was not for you") from error
"""


def test_nobody_takes_sigterm_for_an_exit_of_their_own():
    ended = subprocess.run(
        [sys.executable, "-c", SWALLOWING],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == "anakin: terminated\n" and ended.returncode == 143
