"""Worker processes: what constructors may do there, how they fail, and that none is left."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from podracer.errors import UserError
from sebulba import host_environments
from sebulba.host_environments.options import Options
from sebulba.host_environments.processes import Processes

SECONDS = 60.0  # for what takes a second on an idle machine


class Still(gymnasium.Env):
    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


def start(make, batch_size=1, **options):
    """Environments that `make(seed)` makes in the workers."""
    made = Processes(
        "still", lambda seed: lambda: make(seed), batch_size, 0, Options(**options)
    )
    return made


def is_alive(pid):
    """Whether a process runs; a zombie, which nobody has waited for, does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_end(pids):
    until = time.monotonic() + SECONDS
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(is_alive, pids))


def blocked(pid):
    """The signals that a process does not receive."""
    with open(f"/proc/{pid}/status") as file:
        (mask,) = [line.split()[1] for line in file if line.startswith("SigBlk")]
    return {number for number in signal.Signals if int(mask, 16) >> (number - 1) & 1}


def test_signals_to_a_whole_group_do_not_reach_workers(closing):
    """Not even as they start, when they are in the main process's group still."""

    def make(seed):
        starter = blocked(os.getppid())  # of all workers
        assert starter >= {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        assert os.getpgrp() == os.getpid() and not blocked(os.getpid())
        return Still()

    forkserver._forkserver._stop()  # that of another test may have started otherwise
    closing(start(make)).reset()


def test_a_constructor_has_the_main_thread_and_may_start_processes(closing, tmp_path):
    """What it leaves running ends with its worker."""

    def make(seed):
        import multiprocessing

        assert threading.current_thread() is threading.main_thread()
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # of the main thread only
        asyncio.run(asyncio.sleep(0))
        context = multiprocessing.get_context("fork")
        child = context.Process(target=time.sleep, args=(1_000,), daemon=True)
        child.start()
        (tmp_path / str(child.pid)).touch()
        (tmp_path / str(subprocess.Popen(["sleep", "1000"]).pid)).touch()
        return Still()

    environment = closing(start(make))
    environment.reset()
    pids = [path.name for path in tmp_path.iterdir()]
    assert len(pids) == 2 and all(map(is_alive, pids))
    environment.close()
    assert all_end(pids)


def fails(seed):
    raise LookupError(f"no level\n{seed}")


PLACE = f":{fails.__code__.co_firstlineno + 1} in fails)"


def wraps(seed):
    try:
        fails(seed)
    except LookupError as error:
        raise TypeError("from elsewhere") from error


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (fails, ["still cannot be made: LookupError: no level 0 (", PLACE]),
        (wraps, ["TypeError: from elsewhere (", " in wraps, ", PLACE]),
        (
            lambda seed: os._exit(3),
            ["its worker process ended with exit code 3 while it"],
        ),
        (lambda seed: sys.exit(4), ["still cannot be made: SystemExit: 4 ("]),
        (
            lambda seed: os.kill(os.getpid(), signal.SIGSEGV),
            ["still: its worker process died by SIGSEGV while it made the environment"],
        ),
        (lambda seed: 7, ["still made 7, which is no gymnasium.Env"]),
    ],
)
def test_a_constructor_that_fails_is_one_line(make, lines):
    """Which environment, what it raised and where; the main process goes on."""
    with pytest.raises(UserError) as error:
        start(make)
    line = str(error.value)
    assert "\n" not in line and all(part in line for part in lines), line


def test_environments_of_a_batch_are_alike():
    def make(seed):
        environment = Still()
        environment.action_space = spaces.Discrete(2 + seed)
        return environment

    with pytest.raises(UserError, match="environments 0 and 1 of a batch differ: .*3"):
        start(make, 2)


def test_a_constructor_has_a_time_limit():
    with pytest.raises(
        UserError, match="still: its worker processes did not start withi"
    ):
        start(lambda seed: time.sleep(1_000), start_seconds=0.5)


def test_an_id_that_is_registered_here_alone(closing):
    """As in a script: the workers' registries do not have it."""
    gymnasium.register("OnlyHere-v0", lambda level: Still(), kwargs={"level": 1})
    try:
        name = "gym:OnlyHere-v0"
        options = host_environments.default_options(name)
        environment = closing(host_environments.make(name, 1, 0, 1, options))
        assert environment.reset().observation.tolist() == [[0.0]]
    finally:
        gymnasium.registry.pop("OnlyHere-v0")


def test_what_cannot_be_sent_to_a_worker_is_one_line():
    lock = threading.Lock()
    with pytest.raises(
        UserError, match="cannot be sent to a worker .*; define it in a "
    ):
        start(lambda seed: lock)


SCRIPT = """
import os, subprocess, time
import gymnasium
from sebulba.host_environments.options import Options
from sebulba.host_environments.processes import Processes

class Hanging(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        print(os.getpid(), subprocess.Popen(["sleep", "1000"]).pid, flush=True)

    def reset(self, *, seed=None, options=None):
        time.sleep(1_000)

if __name__ == "__main__":
    environment = Processes("hanging", lambda seed: Hanging, 1, 0, Options())
"""


@pytest.mark.parametrize("killed", [True, False])
def test_no_process_outlives_the_main_process(tmp_path, killed):
    """Which is killed while a step hangs, or ends without closing anything."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "    environment.reset()\n" * killed)
    pids = []
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            pids = process.stdout.readline().split()
            if killed:
                time.sleep(0.5)  # the reset has begun
                process.kill()
            assert process.wait(SECONDS) == -killed * signal.SIGKILL
            assert len(pids) == 2 and all_end(pids)
        finally:
            process.kill()
            for pid in map(int, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
