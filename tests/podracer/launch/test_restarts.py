"""A run whose processes failed resumes from its checkpoint, with any launcher."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from podracer.checkpoints import checksums
from podracer.errors import UserError
from podracer.launch import restarts, slurm
from podracer.launch.steps import Execution
from podracer.runs import run_folder
from tests.podracer.launch import fakes

PROGRAM = ("anakin", "train", "--env", "catch", "--run", "runs/a")
RESUME = ("anakin", "train", "--resume", "runs/a")
ANEW = (*PROGRAM, "--overwrite")

# Ends as the next line of ends.txt says, and writes down how it was started.
FAKE = """
import os, pathlib, sys
said = pathlib.Path("said.txt")
said.touch()
number = len(said.read_text().splitlines())
said.write_text(said.read_text() + " ".join(sys.argv[1:]) + "\\n")
end = pathlib.Path("ends.txt").read_text().splitlines()[number]
if "checkpoint" in end:
    from podracer.checkpoints import checksums
    folder = pathlib.Path("runs/a/checkpoints/7")
    folder.mkdir(parents=True)
    checksums.write(folder)
if "kill" in end:
    os.kill(os.getpid(), 9)
sys.exit(int(end.split()[-1]))
"""


def launched(folder, *argv):
    """A launcher on this machine that has ended."""
    return subprocess.run(
        [sys.executable, "-m", "podracer", "launch", "local", *argv],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=2 * fakes.KILL,
        check=False,
    )


def launched_fake(folder, ends, restarts):
    (folder / "ends.txt").write_text("\n".join(ends))
    (folder / "fake.py").write_text(FAKE)
    program = [sys.executable, "fake.py", "train", "--env", "catch", "--run", "runs/a"]
    done = launched(folder, "1", "--restarts", f"{restarts}", "--", *program)
    return done, (folder / "said.txt").read_text().splitlines()


def test_starts_anew_until_there_is_a_checkpoint(tmp_path):
    ends = ["7", "checkpoint kill 0", "1", "0"]
    done, said = launched_fake(tmp_path, ends, restarts=5)
    first, resume = "train --env catch --run runs/a", "train --resume runs/a"
    assert done.returncode == 0, done.stderr
    assert said == [first, f"{first} --overwrite", resume, resume]
    told = [line for line in done.stdout.splitlines() if line.startswith("restart")]
    assert [line.partition(": ")[0] for line in told] == [
        "restart 1 of 5 after exit code 7, runs/a holds no whole checkpoint yet",
        "restart 2 of 5 after exit code 137, runs/a holds a checkpoint",
        "restart 3 of 5 after exit code 1, runs/a holds a checkpoint",
    ]


@pytest.mark.parametrize("ends, code", [(["7", "8", "9"], 9), (["2"], 2), (["0"], 0)])
def test_ends_after_so_many_or_with_bad_input(tmp_path, ends, code):
    done, said = launched_fake(tmp_path, ends, restarts=2)
    assert done.returncode == code
    assert len(said) == len(ends)


def test_a_run_that_is_killed_goes_on(tmp_path):
    """The whole command, killed with -9 after its first checkpoint."""
    run = tmp_path / "run"
    train = [sys.executable, *f"-m anakin train --env catch --run {run}".split()]
    train += ["--total-steps", "60_000", "--checkpoint.steps", "4_000"]
    argv = ["1", "--restarts", "1", "--", *train]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "podracer", "launch", "local", *argv],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        fakes.until(lambda: any(run.glob("checkpoints/*[0-9]/checksums.json")))
        os.kill(json.loads((run / "state.json").read_text())["pid"], signal.SIGKILL)
        said, _ = launcher.communicate(timeout=2 * fakes.KILL)
    finally:
        launcher.terminate()  # it ends what it has started
        launcher.wait(fakes.KILL)
    assert launcher.returncode == 0
    assert f"restart 1 of 1 after exit code 137, {run} holds a checkpoint: " in said
    assert json.loads((run / "state.json").read_text())["state"] == "finished"
    last = (run / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["steps"] >= 60_000


@pytest.mark.parametrize(
    "program",
    ["python train.py", "anakin train --env catch", "anakin evaluate --run a"],
)
def test_a_command_that_names_no_run_is_refused(program):
    with pytest.raises(
        UserError, match="--restarts resumes a run, but .* --run FOLDER"
    ):
        restarts.commands(program.split())


def test_a_users_own_code_is_named_again():
    """For a run folder alone imports none."""
    names = ("--agent", "mine", "--env", "my_env:Chase", "--network", "a:b")
    program = ("anakin", "train", *names, "--trust", "--run", "runs/a")
    resume = restarts.commands(program).resume
    code = ("--agent", "mine", "--network", "a:b", "--env", "my_env:Chase", "--trust")
    assert resume == (*RESUME, *code)


def test_a_run_that_is_to_be_removed_is_never_resumed():
    with pytest.raises(UserError, match="remove runs/a yourself"):
        restarts.commands(ANEW)


@pytest.mark.parametrize("place", ["", "seed-1"])
@pytest.mark.parametrize(
    "names, expected",
    [([], ANEW), (["3.orbax-checkpoint-tmp-5"], ANEW), (["3.tmp", "20"], RESUME)],
)
def test_a_shell_finds_what_we_find(tmp_path, monkeypatch, place, names, expected):
    monkeypatch.chdir(tmp_path)
    for name in names:
        folder = Path("runs/a") / place / "checkpoints" / name
        folder.mkdir(parents=True)
        checksums.write(folder)
    assert restarts.following(PROGRAM)[0] == expected
    said = (
        f"set -o pipefail; anakin() {{ echo anakin $*; }}; {restarts.in_shell(PROGRAM)}"
    )
    assert bash(said, {}) == f"{' '.join(expected)}\n"


@pytest.mark.timeout(60)
def test_a_configuration_that_cannot_be_read_is_left_to_the_command(
    tmp_path, monkeypatch
):
    """Which refuses the folder in one line."""
    monkeypatch.chdir(tmp_path)
    Path("runs/a").mkdir(parents=True)
    os.mkfifo("runs/a/config.json")
    assert restarts.following(PROGRAM)[0] == PROGRAM


@pytest.mark.parametrize("place", ["", "seed-0"])
@pytest.mark.parametrize(
    ("command", "checkpoint", "expected"),
    [
        (PROGRAM, False, ANEW),
        (PROGRAM, True, RESUME),
        (ANEW, True, RESUME),
        (RESUME, True, RESUME),
        ((*PROGRAM, "--seed", "3"), False, PROGRAM),
        ((*PROGRAM, "--seed", "3"), True, PROGRAM),
        (("anakin", "train", "--seed", "3", *PROGRAM[2:]), True, PROGRAM),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else None,
)
def test_the_run_of_another_command_is_left_alone(
    tmp_path, monkeypatch, place, command, checkpoint, expected
):
    """Where the first start ended before it could be refused; in `set -o pipefail`, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/bin/anakin", *command[1:]])
    run_folder.create(Path("runs/a") / place, {})
    if checkpoint:
        folder = Path("runs/a/checkpoints/7")
        folder.mkdir(parents=True)
        checksums.write(folder)
    assert restarts.following(PROGRAM)[0] == expected
    shell = (
        f"set -o pipefail; anakin() {{ echo anakin $*; }}; {restarts.in_shell(PROGRAM)}"
    )
    assert bash(shell, {}) == f"{' '.join(expected)}\n"


def test_letters_that_json_or_a_shell_would_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = ("anakin", "train", "--env", 'my:"é\'s"', "--run", "a b")
    monkeypatch.setattr(sys, "argv", ["/bin/anakin", *program[1:]])
    run_folder.create("a b", {})
    assert restarts.following(program)[0] == (*program, "--overwrite")
    said = bash(f"anakin() {{ echo $*; }}; {restarts.in_shell(program)}", {})
    assert said.endswith(" --overwrite\n")


def test_a_damaged_configuration_is_no_command_of_ours(tmp_path):
    program = ("anakin", "train", "--run", str(tmp_path))
    (tmp_path / "config.json").write_bytes(b"\xff\x00")
    assert restarts.following(program)[0] == program


def test_a_damaged_checkpoint_does_not_count(tmp_path):
    folder = tmp_path / "checkpoints" / "7"
    folder.mkdir(parents=True)
    program = ("anakin", "train", "--run", str(tmp_path))
    assert restarts.following(program)[0] == (*program, "--overwrite")


@pytest.mark.parametrize(
    "count, code, expected",
    [
        (None, 0, ["srun first"]),
        (None, 1, ["srun first", "requeue 5"]),
        (None, 2, ["srun first"]),
        (1, 137, ["srun anew", "requeue 5"]),
        (2, 137, ["srun anew"]),
    ],
)
def test_a_job_is_queued_again(tmp_path, monkeypatch, count, code, expected):
    monkeypatch.chdir(tmp_path)
    text = slurm.script(slurm.Config("a", execution=Execution(restarts=2)), PROGRAM)
    srun = "srun() { [[ $* == *overwrite ]] && echo srun anew || echo srun first; return $CODE; }"
    said = bash(
        f'{srun}; scontrol() {{ echo $*; }}; trap "echo ended \\$?" EXIT\n{text}',
        {"SLURM_JOB_ID": "5", "CODE": f"{code}"}
        | ({} if count is None else {"SLURM_RESTART_COUNT": f"{count}"}),
    )
    assert said.splitlines() == [*expected, f"ended {code}"]


def test_a_hosts_process_has_all_of_its_gpus():
    text = f"{slurm.ALL_GPUS}echo $JAX_LOCAL_DEVICE_IDS"
    assert bash(text, {"SLURM_GPUS_ON_NODE": "4"}) == "0,1,2,3\n"
    assert bash(text, {}) == "\n"


def bash(text, variables):
    """What it prints."""
    return subprocess.run(
        ["bash", "-c", text],
        env={"PATH": os.environ["PATH"]} | variables,
        stdout=subprocess.PIPE,
        text=True,
        timeout=fakes.KILL,
        check=False,
    ).stdout


def test_a_program_may_write_any_bytes(tmp_path):
    """More of them than a pipe holds: a launcher that stops to read would hang."""
    write = r"import os; [os.write(1, b'caf\xe9\n' * 1_000) for _ in range(20)]"
    done = launched(tmp_path, "1", "--", sys.executable, "-c", write)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == 20_000 * "[0] caf\ufffd\n"
