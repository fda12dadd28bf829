"""`podracer launch local N -- COMMAND`: N processes on this machine, as N hosts would be."""

import dataclasses
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import IO

import tyro

from podracer import command
from podracer.errors import check_at_least_one, check_range
from podracer.launch import restarts
from podracer.launch.steps import END_SECONDS, Execution, Step, end

EXAMPLE = "local 2 -- python train.py"
MOST_PROCESSES = 1_000
CHATTER = "[Gloo] Rank "  # how many it is connected to; XLA has no switch for it


@dataclasses.dataclass(frozen=True)
class Config:
    """Starts processes on this machine that run one program together, as several hosts
    would: podracer launch local 2 -- python train.py. Your own program must call
    `podracer.hosts.initialize()` first."""

    processes: tyro.conf.Positional[int] = 2
    """number of processes"""
    cores: int = 1
    """virtual CPU devices of each process"""
    execution: command.Flat[Execution] = dataclasses.field(default_factory=Execution)

    def __post_init__(self):
        check_range("processes", self.processes, 1, MOST_PROCESSES)
        check_at_least_one(cores=self.cores)


def steps(config: Config, program: Sequence[str]) -> list[Step]:
    """One step a process, to run at the same time, with a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        Step(f"{i}", ("env", *_variables(address, config, i), *program))
        for i in range(config.processes)
    ]


def run(config: Config, program: Sequence[str]) -> int:
    """Runs `program` in connected processes; returns the exit code.

    Each line of their output is prefixed with the process's index. A process that fails
    ends the others, which would wait for it; so do Ctrl-C and SIGTERM.
    """

    def start(program: Sequence[str]) -> int:
        return _together(steps(config, program))

    return restarts.run(
        start, program, config.execution.restarts, partial(restarts.following, program)
    )


def _variables(address: str, config: Config, number: int) -> list[str]:
    from podracer.parallel.hosts import VARIABLES  # imports JAX

    values = address, config.processes, number
    named = [*zip(VARIABLES, values), ("JAX_NUM_CPU_DEVICES", config.cores)]
    return [f"{name}={value}" for name, value in named]


def _together(steps: Sequence[Step]) -> int:
    processes = [
        subprocess.Popen(
            step.argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # a program may write any bytes
        )
        for step in steps
    ]
    failed: list[OSError] = []  # of our own output
    readers = [
        threading.Thread(
            target=_print_lines, args=(step.name, process.stdout, failed), daemon=True
        )
        for step, process in zip(steps, processes)
    ]
    for reader in readers:
        reader.start()
    try:
        while any(p.poll() is None for p in processes):
            if failed or any(p.poll() for p in processes):
                break
            time.sleep(0.1)
    finally:
        end(processes)
    for reader in readers:
        reader.join(END_SECONDS)
    if failed:
        raise failed[0]
    codes = [p.returncode for p in processes if p.returncode]
    own = [code for code in codes if code > 0]  # not by our own signal
    return (own or [128 - code for code in codes] or [0])[0]


def _print_lines(name: str, lines: IO[str], failed: list[OSError]) -> None:
    """Reads to the end even where nothing can be printed: else the process would block."""
    for line in lines:
        try:
            if not (failed or line.startswith(CHATTER)):
                print(f"[{name}] {line}", end="", flush=True)
        except OSError as error:  # nobody reads, or the disk is full
            failed.append(error)
