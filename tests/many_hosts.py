"""Processes that are the hosts of one run, each started as a command or a function."""

import os
import socket
import sys
import time

import jax
import numpy as np

from podracer.command.ends import run_exit_handlers
from podracer.parallel import hosts
from podracer.parallel.hosts import VARIABLES
from tests import interruptions

MOST_SECONDS = 400.0  # a limit for hangs; under load a run has taken 100


def as_host(
    address, count, number, output, heartbeat, environment, function, *arguments
):
    """What the process of a host does."""
    os.environ |= dict(zip(VARIABLES, (address, str(count), str(number)), strict=True))
    os.environ |= environment
    os.chdir(output.parent)
    interruptions.say_in(output)
    hosts.HEARTBEAT_SECONDS = heartbeat
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 multiprocessing would not call the hook
        sys.excepthook(*sys.exc_info())
        sys.exit(1)  # for an error before the watch: its hook does not return
    finally:
        run_exit_handlers()
        jax.distributed.shutdown()  # JAX's own, which a server of forks forgets since 3.13


def start(folder, function, each, heartbeat=20, **environment):
    """A process for each of `each`, the arguments of one host; they say what in NUMBER.txt."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []
    for number, arguments in enumerate(each):
        said = folder / f"{number}.txt"
        said.unlink(missing_ok=True)
        host = interruptions.processes.Process(
            target=as_host,
            args=(
                *(address, len(each), number, said, heartbeat, environment),
                *(function, *arguments),
            ),
        )
        host.start()
        processes.append(host)
    return processes


def codes(processes):
    """How they ended; none may hang."""
    deadline = time.monotonic() + MOST_SECONDS
    try:
        for host in processes:
            host.join(max(0.0, deadline - time.monotonic()))
            assert not host.is_alive(), "a host hangs"
    finally:
        for host in processes:
            host.kill()
    return [host.exitcode for host in processes]


def kept(folder, function, each):
    """The arrays that each host of a run left in NUMBER.npz."""
    ends = codes(start(folder, function, each))
    assert ends == [0] * len(each), said(folder, 0) + said(folder, 1)
    return [dict(np.load(folder / f"{i}.npz")) for i in range(len(each))]


def assert_same(hosts, alone):
    """What hosts kept is one host's: `seen` bit for bit when put together, and all else
    to rounding, bit-equal among them."""
    for name in alone.keys() - {"seen"}:
        assert all((other[name] == hosts[0][name]).all() for other in hosts)
        np.testing.assert_allclose(hosts[0][name], alone[name], atol=1e-5)
    together = np.concatenate([each["seen"] for each in hosts])
    np.testing.assert_array_equal(together, alone["seen"])


def said(folder, number):
    path = folder / f"{number}.txt"
    return path.read_text() if path.exists() else ""


def command(program, *arguments):
    """`anakin train ...`, as a host runs it."""
    interruptions.run(program, arguments)
