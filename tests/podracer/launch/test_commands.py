"""What launchers print, word for word as their pages show it, and what they refuse."""

import importlib.metadata
import io
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from podracer import launch
from podracer.errors import UserError
from podracer.launch import local, tpu, tpu_host
from tests.podracer.launch import fakes

ROOT = Path(__file__).parents[3]
BLOCKS = re.compile(r"```\n(.*?)```", re.DOTALL)


def shown():
    """The dry runs of the pages: each command, and what its page says that it prints."""
    for place in launch.PLACES:
        blocks = BLOCKS.findall((ROOT / "docs" / "launch" / f"{place}.md").read_text())
        for command, printed in itertools.pairwise(blocks):
            if "--dry-run" in command:
                yield place, command, printed


SHOWN = [*shown()]


def printed_by(capsys, command):
    """Without what differs between machines."""
    launch.start(shlex.split(command)[2:])
    said = capsys.readouterr().out.replace(sys.executable, "python")
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", said)


@pytest.mark.parametrize("place, command, printed", SHOWN, ids=[x[0] for x in SHOWN])
def test_a_page_shows_what_is_printed(capsys, place, command, printed):
    assert command.startswith(f"podracer launch {place} ")
    assert printed_by(capsys, command) == printed


def test_every_place_has_a_dry_run_and_restarts_on_its_page():
    assert {place for place, *_ in SHOWN} == {*launch.PLACES}
    others = {place for place, command, _ in SHOWN if "--restarts" in command}
    assert others == {*launch.PLACES} - {"local"}


@pytest.mark.parametrize("place, command, printed", SHOWN, ids=[x[0] for x in SHOWN])
def test_a_shell_takes_what_is_printed(place, command, printed):
    assert printed
    subprocess.run(["bash", "-n"], input=printed, text=True, timeout=60, check=True)


@pytest.mark.parametrize(
    "flags, words",
    [
        ("tpu a --zone z --spot", "--valid-until-duration=60m --spot\n"),
        (
            "tpu a --zone z --accelerator-type v6e-8",
            "--runtime-version=v2-alpha-tpuv6e ",
        ),
        (
            "tpu a --zone z --accelerator-type v7-8 --runtime-version new",
            "--runtime-version=new ",
        ),
        ("tpu a --zone z --wait-minutes 5", "--valid-until-duration=5m\n"),
        ("tpu a --zone z --install .[envpool,video]", "-any.whl[envpool,video]"),
        ("tpu a --zone z --install git+https://a/b", '"jax[tpu]" git+https://a/b'),
        ("xpk a --cluster c --image i --slices 2", " --env=PODRACER_HOSTS=detect "),
    ],
)
def test_flags_reach_the_commands(capsys, flags, words):
    command = f"podracer launch {flags} --dry-run -- python train.py"
    assert words in printed_by(capsys, command)


@pytest.mark.parametrize(
    "argv, line",
    [
        ("lokal 2 -- a", "no such command: 'lokal'; did you mean 'local'"),
        ("local 0 -- a", "processes is 0"),
        ("local 99999999 -- a", "processes is 99999999; it must be from 1 to 1000"),
        ("local 2", "which program\\? podracer launch local 2 -- python train.py"),
        ("slurm -- a", "NAME is missing: podracer launch slurm NAME"),
        ("slurm a --nodes 0 -- a", "nodes is 0"),
        ("tpu --zone z -- a", "NAME is missing: podracer launch tpu NAME --zone"),
        ("tpu a -- a", "--zone is missing"),
        ("tpu a --zone z --accelerator-type v9-8 -- a", "v9-8; .* --runtime-version"),
        (
            "tpu a --zone z --accelerator-type v5litepod-16 -- anakin train",
            "several hosts, which must share the folder of a run: add --bucket",
        ),
        ("tpu a --zone z --restarts 2 -- a", "--restarts resumes a run"),
        ("tpu a --zone z --restarts -1 -- a", "restarts is -1"),
        ("xpk a --cluster c -- a", "--image is missing"),
        ("xpk a --image i -- a", "--cluster is missing"),
    ],
)
def test_bad_input_is_one_line(argv, line):
    with pytest.raises(UserError, match=line):
        launch.start(argv.split())


def test_only_a_checkout_can_be_sent(tmp_path, monkeypatch):
    assert re.fullmatch(r"podracer_rl-[\d.]+-py3-none-any\.whl", tpu._wheel(".[video]"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no checkout of podracer"):
        tpu._wheel(".")


@pytest.mark.parametrize(("extras", "first"), [("[envpool]", "sudo"), ("", "python3")])
def test_a_host_gets_the_opengl_that_envpool_needs(extras, first):
    commands = tpu_host.installing(f"./podracer.whl{extras}").split(" && ")
    assert commands[0].split()[0] == first
    assert any("libegl1" in command for command in commands) == bool(extras)
    assert f"./podracer.whl{extras}" in commands[-1]


def test_a_host_keeps_what_a_command_says_and_its_exit_code(tmp_path):
    done = subprocess.run(
        [
            "bash",
            "-c",
            tpu_host.running("my run", "echo $PODRACER_HOSTS; false || exit 7", True),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=fakes.KILL,
        check=False,
    )
    assert done.returncode == 7
    (log,) = (tmp_path / "my run").glob("log-*.txt")
    assert done.stdout == log.read_text() == "detect\n"


def test_the_image_can_have_what_it_names():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    words = [line.split() for line in lines]
    copied = {name for word in words if word[:1] == ["COPY"] for name in word[1:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert copied == {*packages, "pyproject.toml", "README.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in copied)
    defaults = dict(word[1].split("=") for word in words if word[:1] == ["ARG"])
    assert defaults["EXTRAS"] in project["project"]["optional-dependencies"]
    extras = importlib.metadata.metadata("jax").get_all("Provides-Extra")
    assert {defaults["ACCELERATOR"], "cuda12", "cuda13"} <= {*extras}


def test_what_gloo_says_of_its_connections_is_not_shown(capsys):
    lines = io.StringIO(
        "[Gloo] Rank 0 is connected to 1 peer ranks.\n[Gloo] failed\nx\n"
    )
    local._print_lines("0", lines, [])
    assert capsys.readouterr().out == "[0] [Gloo] failed\n[0] x\n"
