"""What launchers ask of other programs: in order, whole, and with the end that must be."""

import os
import signal
import subprocess
import sys
import time

import pytest

from podracer import launch
from podracer.errors import UserError
from podracer.launch import steps
from podracer.launch.steps import Step
from tests.podracer.launch import fakes

TPU = ["tpu", "catch", "--zone", "z", "--install", "git+https://x"]
TRAIN = ["--", "anakin", "train", "--env", "catch", "--run", "runs/a"]
ALL = ["create", "describe", "pip install", "anakin", "scp", "delete"]


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """A folder where fakes write down what they are asked."""
    for name, value in fakes.install(tmp_path, "gcloud", "sbatch", "xpk").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(steps, "POLL_SECONDS", 0.01)
    return tmp_path


def start(*argv):
    with pytest.raises(SystemExit) as end:
        launch.start(argv)
    return end.value.code


def asked(folder):
    """The calls in a word each."""
    lines = fakes.calls(folder)
    return [
        next(word for word in [*ALL, "gcsfuse", "-"] if word in line) for line in lines
    ]


def test_all_in_order(cloud):
    assert start(*TPU, *TRAIN) == 0
    assert asked(cloud) == ALL


def test_waits_for_the_slice(cloud, capfd):
    (cloud / "states.txt").write_text("CREATING\nPROVISIONING\nPROVISIONING\nACTIVE\n")
    assert start(*TPU, *TRAIN) == 0
    assert asked(cloud) == [ALL[0], *4 * ["describe"], *ALL[2:]]
    assert capfd.readouterr().out.count("wait: PROVISIONING\n") == 1


@pytest.mark.parametrize(
    "fails, calls",
    [
        ("*create*", ["create"]),  # there may be another slice of that name: keep it
        ("*pip install*", ["create", "describe", "pip install", "delete"]),
        ("*anakin*", ALL),
        ("*scp*", ALL),
        ("*delete*", ALL),
    ],
)
def test_a_failure_ends_in_deletion(cloud, monkeypatch, fails, calls):
    monkeypatch.setenv("FAIL", fails)
    assert start(*TPU, *TRAIN) == 1
    assert asked(cloud) == calls


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_a_request_that_failed_is_deleted(cloud, state):
    (cloud / "states.txt").write_text(f"PROVISIONING\n{state}\n")
    assert start(*TPU, *TRAIN) == 1
    assert asked(cloud) == ["create", "describe", "describe", "delete"]


def test_waiting_has_an_end(cloud):
    (cloud / "states.txt").write_text("")
    wait = Step("wait", ("gcloud", "describe"), seconds=1.0, until="ACTIVE")
    assert steps.do([wait], "") == steps.TIMED_OUT
    assert asked(cloud)[:2] == ["describe", "describe"]


def test_a_step_has_an_end(cloud):
    before = time.monotonic()
    code = steps.do([Step("slow", ("bash", "-c", "sleep 600; :"), seconds=0.2)], "")
    assert code == steps.TIMED_OUT
    assert time.monotonic() - before < 300  # not the 600 that it would sleep


def test_what_took_too_long_may_be_there(cloud, monkeypatch):
    monkeypatch.setenv("SLOW", "create")
    create = Step("create", ("gcloud", "create"), seconds=3.0)
    delete = Step("delete", ("gcloud", "delete"), after="create")
    assert steps.do([create, delete], "") == steps.TIMED_OUT
    assert asked(cloud) == ["create", "delete"]


def test_several_hosts_work_in_a_bucket(cloud):
    assert start(*TPU, "--accelerator-type", "v6e-16", "--bucket", "b", *TRAIN) == 0
    assert asked(cloud) == [*ALL[:3], "gcsfuse", "anakin", "delete"]
    assert (
        "&& export PATH=~/.podracer/bin:$PATH PODRACER_HOSTS=detect &&"
        in (fakes.calls(cloud)[4])
    )


def test_a_slice_can_be_kept(cloud):
    assert start(*TPU, "--keep", *TRAIN) == 0
    assert asked(cloud) == ALL[:-1]


@pytest.mark.parametrize("code, runs", [(1, 3), (137, 3), (2, 1)])
def test_the_run_is_restarted_on_its_slice(cloud, monkeypatch, code, runs):
    monkeypatch.setenv("FAIL", "*anakin*")
    monkeypatch.setenv("CODE", f"{code}")
    assert start(*TPU, "--restarts", "2", *TRAIN) == code
    assert asked(cloud) == [
        "create",
        "describe",
        "pip install",
        *runs * ["anakin"],
        *ALL[4:],
    ]
    lines = [line for line in fakes.calls(cloud) if "anakin" in line]
    assert ["--resume runs/a" in line for line in lines] == [False, True, True][:runs]


def test_a_script_is_submitted(cloud):
    assert start("slurm", "catch", "--nodes", "2", *TRAIN) == 0
    assert fakes.calls(cloud) == ["sbatch "]
    script = (cloud / "script.txt").read_text()
    assert script.endswith(
        "srun --kill-on-bad-exit=1 anakin train --env catch --run runs/a\n"
    )


def test_a_workload_is_submitted(cloud, monkeypatch):
    monkeypatch.setenv("FAIL", "*workload*")
    monkeypatch.setenv("CODE", "9")
    assert start("xpk", "catch", "--cluster", "c", "--image", "i", *TRAIN) == 9
    (line,) = fakes.calls(cloud)
    assert line == (
        "xpk workload create --workload=catch --cluster=c --docker-image=i "
        "--tpu-type=v5litepod-16 --num-slices=1 "
        "--command anakin train --env catch --run runs/a"
    )


@pytest.mark.parametrize(
    "argv, line",
    [
        (TPU, "gcloud is not installed here .*cloud.google.com/sdk"),
        (["slurm", "catch"], "sbatch is not installed here"),
        (
            ["xpk", "a", "--cluster", "c", "--image", "i"],
            "xpk is not .*pip install xpk",
        ),
    ],
)
def test_a_tool_that_is_missing_is_one_line(tmp_path, monkeypatch, argv, line):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=line):
        launch.start([*argv, *TRAIN])


@pytest.mark.parametrize(
    "slow, number, calls, code, ended",
    [
        ("*anakin*", signal.SIGINT, ALL, 130, False),
        ("*anakin*", signal.SIGTERM, ALL, 143, False),
        ("*anakin*", signal.SIGHUP, ALL, 129, False),
        ("*create*", signal.SIGINT, ["create", "delete"], 130, True),
        ("*create*", signal.SIGTERM, ["create", "delete"], 143, True),
        ("*create*", signal.SIGHUP, ["create", "delete"], 143, True),
        ("*scp*", signal.SIGINT, ALL, 130, True),
    ],
)
def test_an_interruption_ends_in_deletion(tmp_path, slow, number, calls, code, ended):
    """As a terminal sends it, to all; whether the slow step could end by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "podracer", "launch", *TPU, *TRAIN],
        env=fakes.install(tmp_path, "gcloud") | {"SLOW": slow},
        start_new_session=True,
    )
    try:
        fakes.until((tmp_path / "slow").exists)
        os.killpg(process.pid, number)
        if ended:
            time.sleep(0.5)  # that the signal has to end it, if it could
            (tmp_path / "go").touch()
        assert process.wait(fakes.KILL) == code
    finally:
        process.kill()
    assert asked(tmp_path) == calls
    assert (tmp_path / "ended").exists() == ended
