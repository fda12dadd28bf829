"""`podracer launch local N -- COMMAND`: N processes on this machine, as N hosts would be."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO

from podracer.hosts import VARIABLES

END_SECONDS = 10.0  # that the others may take once one has failed, or after a signal


def local(count: int, cores: int, command: Sequence[str]) -> int:
    """Runs `command` as `count` processes that know of one another; returns the exit code.

    Their output comes line by line, with the process's number before it. One that fails
    ends the others: they would wait for it. So does Ctrl-C, and SIGTERM.

    Args:
      count: processes.
      cores: of each, made up where there is only a CPU.
      command: a program and its arguments; it calls `podracer.hosts.initialize`.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            command,
            env=os.environ
            | dict(zip(VARIABLES, (address, str(count), str(i)), strict=True))
            | {"JAX_NUM_CPU_DEVICES": str(cores)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(count)
    ]
    readers = [
        threading.Thread(target=_tell, args=(i, process.stdout), daemon=True)
        for i, process in enumerate(processes)
    ]
    for reader in readers:
        reader.start()
    try:
        while any(p.poll() is None for p in processes):
            if any(p.poll() for p in processes):
                break
            time.sleep(0.1)
    finally:
        _end(processes)
    for reader in readers:
        reader.join(END_SECONDS)
    failed = [p.returncode for p in processes if p.returncode]
    own = [code for code in failed if code > 0]  # not those that we ended
    return (own or [128 - code for code in failed] or [0])[0]


def _tell(number: int, lines: IO[str]) -> None:
    for line in lines:
        print(f"[{number}] {line}", end="", flush=True)


def _end(processes: Sequence[subprocess.Popen]) -> None:
    """Asks those that still run to end, then makes them."""
    running = [p for p in processes if p.poll() is None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before `--`, and the command behind it."""
    argv = list(argv)
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]
