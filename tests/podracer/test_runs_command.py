"""`podracer`: what it says of itself, and of no runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import podracer.__main__ as command
from podracer.command import dispatch
from podracer.errors import UserError
from podracer.files import atomic


def test_no_runs_yet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command.list_runs([])
    (tmp_path / "runs").mkdir()
    command.list_runs(["runs"])
    line = "runs: no runs here yet; anakin train and sebulba train make them\n"
    assert capsys.readouterr().out == 2 * line
    with pytest.raises(UserError, match="elsewhere/config.json: No such file"):
        command.list_runs(["elsewhere"])


@pytest.mark.parametrize("name", ["plot", "list_runs", "compare", "export", "hub"])
def test_an_empty_path_is_refused(name):
    with pytest.raises(UserError, match="^an argument is empty"):
        getattr(command, name)([""])


def test_help_says_what_every_command_does(capsys):
    dispatch(command.COMMANDS, ["--help"], "podracer")
    dispatch(command.COMMANDS, ["launch", "--help"], "podracer")
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("  ")]
    assert [x.split()[0] for x in lines] == [*command.COMMANDS, *command.launch.PLACES]
    assert all(len(x.split()) > 3 for x in lines)


@pytest.mark.parametrize("path", [".", "/"])
def test_a_folder_is_no_file_to_write(path):
    line = "cannot write: a folder; name a file"
    with pytest.raises(UserError, match=line), atomic(Path(path)):
        pass


def piped(line, **variables):
    """What a command in a shell says."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m podracer {line}"],
        env=os.environ | {"PYTHONPATH": os.getcwd()} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nobody_has_to_read_the_output():
    done = piped("--help | true")
    assert (done.returncode, done.stderr) == (141, "")


def test_processes_end_where_nobody_reads_their_output():
    """They write more than a pipe holds, and would hang."""
    done = piped(
        "launch local 2 -- bash -c 'yes | head -c 300000; exec sleep 100' | head -1"
    )
    assert (done.returncode, done.stderr) == (141, "")


def test_an_output_on_a_full_disk_is_one_line():
    done = piped("--help > /dev/full")
    line = "podracer: error: the output: cannot write: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_no_output_is_needed(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = piped(f"runs {tmp_path.parent} >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_letters_that_the_output_cannot_have(tmp_path):
    folder = tmp_path / "läuft"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    done = piped(f"runs {tmp_path}", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "l\\xe4uft" in done.stdout


def test_a_list_of_runs_needs_no_jax(tmp_path):
    program = f"""
import sys
import podracer.__main__ as command
from podracer.command import dispatch, exits
with exits("podracer"):
    dispatch(command.COMMANDS, ["--help"], "podracer")
    command.list_runs([{str(tmp_path)!r}])
print("jax" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_the_usage_of_launch_shows_the_command(capsys):
    with pytest.raises(SystemExit):
        command.start(["local", "--help"])
    usage, _, _ = capsys.readouterr().out.partition("\n\n")
    assert usage.endswith(" -- COMMAND")
