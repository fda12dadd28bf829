"""Hosts: several processes that run one program over all of their cores.

This is JAX's multi-controller runtime: every process runs the same script, and
`jax.devices()` lists the cores of all of them
(https://docs.jax.dev/en/latest/multi_process.html). Outside of compiled programs, hosts
exchange data through JAX's key-value service; every wait there has a time limit.
`parallel.watch` ends a host when another one fails.
"""

import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

# No public name has the client of JAX's key-value service, and none says without starting a
# backend which process this is. Orbax reads them here, too.
from jax._src.distributed import global_state as cluster

from podracer.errors import UserError
from podracer.parallel import watch

VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
ASK = "PODRACER_HOSTS"  # "detect": let JAX find the cluster; "alone": one process
CLUSTERS = (  # environment variables: (number of processes, one that must be set too)
    ("SLURM_NTASKS", "SLURM_STEP_NODELIST"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"),  # Cloud TPU on Kubernetes
)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
START_SECONDS = 300  # for all processes to join
NOTICE_SECONDS = 10  # of waiting for them, before a line says so
VALUE_SECONDS = 600  # for a value from another host
HEARTBEAT_SECONDS = 30  # without a heartbeat, a process counts as dead

_numbers = itertools.count()  # of exchanges, for unique keys; equal on all hosts


def initialize() -> bool:
    """Joins the other processes of a run, if there are any.

    The three VARIABLES name them, or JAX detects them: without being asked under SLURM,
    Open MPI and on Cloud TPU with Kubernetes; with `PODRACER_HOSTS=detect` elsewhere
    (slices of Cloud TPU VMs, Kubernetes). `PODRACER_HOSTS=alone` means a single process.

    Call it before any computation. It does nothing for a single process or when called
    again. Afterwards an uncaught exception ends all hosts, see `parallel.watch`.

    Returns:
      Whether there are several processes.

    Raises:
      UserError: one of the variables is missing or wrong.
    """
    arguments = _detected() if number_of() == 1 else None
    if arguments is not None:
        _join(*arguments)
    if number_of() > 1:
        watch.start(cluster.client, this(), number_of())
    return number_of() > 1


def _join(*named: Any) -> None:
    """Waits for the other processes."""
    options: dict[str, Any] = {
        "initialization_timeout": START_SECONDS,
        "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
    }
    if named and named[0].rpartition(":")[0] in LOOPBACK:
        # The coordinator asks for no password, and JAX has it listen on all interfaces.
        options["coordinator_bind_address"] = named[0]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    handler = signal.getsignal(signal.SIGTERM)
    line = f"waiting for the other hosts, {START_SECONDS} s at most"
    notice = threading.Timer(NOTICE_SECONDS, print, [line], {"file": sys.stderr})
    notice.daemon = True
    notice.start()
    jax.distributed.initialize(*named, **options)
    notice.cancel()
    signal.signal(signal.SIGTERM, handler)  # JAX's own handler only records the signal


def _detected() -> tuple | None:
    """The arguments of `jax.distributed.initialize`; None for a single process."""
    choice = os.environ.get(ASK)
    if choice not in (None, "", "detect", "alone"):
        raise UserError(f"{ASK} is {choice!r}; it must be detect or alone")
    if choice == "alone":
        return None
    values = [os.environ.get(name) for name in VARIABLES]
    if any(values[1:]):
        return _named(values)
    in_cluster = any(_is_cluster(*names) for names in CLUSTERS)
    return () if in_cluster or choice == "detect" else None


def _named(values: list[str | None]) -> tuple | None:
    for name, value in zip(VARIABLES, values, strict=True):
        if not value or (name != VARIABLES[0] and not value.isdecimal()):
            raise UserError(
                f"{name} is {value!r}; several processes need {', '.join(VARIABLES)}: "
                "host:port of the first process, their number, and the index of this one"
            )
    count, number = int(values[1]), int(values[2])
    if not number < count:
        raise UserError(f"JAX_PROCESS_ID is {number}; it must be from 0 to {count - 1}")
    if count == 1:
        return None
    port = values[0].rpartition(":")[2]
    if not (":" in values[0] and port.isdecimal() and 0 < int(port) < 2**16):
        raise UserError(
            f"{VARIABLES[0]} is {values[0]!r}; it must be host:port of the first process, "
            "with a port from 1 to 65535"
        )
    return values[0], count, number


def _is_cluster(count: str, besides: str) -> bool:
    """Whether these variables describe one of several processes."""
    value = os.environ.get(count, "")
    several = int(value) > 1 if value.isdecimal() else "," in value
    return several and besides in os.environ


def this() -> int:
    """The index of this host; host 0 reports for all. Starts no backend."""
    return cluster.process_id


def number_of() -> int:
    """The number of hosts. Starts no backend."""
    return cluster.num_processes or 1


def lead(function: Callable[[], Any]) -> Any:
    """Calls `function` on host 0 only and returns its result on every host.

    The result must be JSON. All hosts make these calls in the same order.
    """
    if number_of() == 1:
        return function()
    key = f"podracer/led/{next(_numbers)}"
    if this() == 0:
        text = json.dumps(function())
        cluster.client.key_value_set(key, text)
        return json.loads(text)
    return json.loads(_wait_for(key))


def check_same(settings: Mapping[str, Any]) -> None:
    """Raises UserError on every host if the hosts were started with different settings.

    `settings` must be JSON; nested dictionaries are compared field by field. All hosts
    make these calls in the same order.
    """
    if number_of() == 1:
        return
    client, place = cluster.client, f"podracer/same/{next(_numbers)}"
    text = json.dumps({**settings, "hosts": number_of()}, sort_keys=True)
    client.key_value_set(f"{place}/text/{this()}", text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    client.key_value_set(f"{place}/digest/{this()}", digest)
    client.wait_at_barrier(f"{place}/all", 1000 * START_SECONDS)
    digests = dict(client.key_value_dir_get(f"{place}/digest"))
    digests = {int(key.rpartition("/")[2]): x for key, x in digests.items()}
    for host in sorted(digests):
        if digests[host] != digests[0]:
            first, other = (
                _flat(json.loads(_wait_for(f"{place}/text/{i}"))) for i in (0, host)
            )
            names = [x for x in {**first, **other} if first.get(x) != other.get(x)]
            raise UserError(
                f"hosts 0 and {host} were started with different settings: "
                + "; ".join(f"{x} {first.get(x)} and {other.get(x)}" for x in names)
                + ": run the same command and versions on every host"
            )


def _wait_for(key: str) -> str:
    return cluster.client.blocking_key_value_get(key, 1000 * VALUE_SECONDS)


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    parts = (_flat(x, f"{prefix}.{name}".lstrip(".")) for name, x in tree.items())
    return {name: x for part in parts for name, x in part.items()}


def share(count: int) -> range:
    """Of `count` things that lie on the cores of all hosts, host after host, this host's."""
    each = count // number_of()
    return range(this() * each, (this() + 1) * each)


def meet() -> None:
    """Waits for all hosts, which make these calls in the same order; none is due then."""
    agree(0, False)
    watch.at_rest()


def array_metadata() -> Any:
    """Orbax's store of what arrays are besides their numbers, as the kind of a random key.

    For a handler that writes what is of this host alone; no public name has it.
    """
    from orbax.checkpoint._src.metadata import array_metadata_store  # slow to import

    return array_metadata_store.Store()


def total(numbers: Mapping[str, float]) -> dict[str, float]:
    """The sums over all hosts, which make these calls in the same order."""
    if number_of() == 1:
        return dict(numbers)
    of_hosts = _gather(np.array([*numbers.values()], np.float32))
    return dict(zip(numbers, of_hosts.sum(0).tolist(), strict=True))


def in_a_second(count: int, seconds: float) -> int:
    """How many take about a second if `count` took `seconds`: 1 to 8 x `count`."""
    return max(1, int(count * min(8.0, 1.0 / seconds)))


class Ends:
    """Whether any host wants to stop. Cheap: hosts exchange it about once a second.

    An exchange takes longer than a short update. All hosts make the same calls.
    """

    def __init__(self, wanted: Callable[[], bool]):
        self._wanted, self._calls, self._every = wanted, 0, 1
        self._since = time.monotonic()

    def __call__(self) -> bool:
        if number_of() == 1:
            return self._wanted()
        self._calls += 1
        if self._calls < self._every:
            return False
        now = time.monotonic()
        every = in_a_second(self._calls, now - self._since)
        self._every, ends = agree(every, self._wanted())
        self._calls, self._since = 0, now
        return ends


def agree(number: int, ends: bool) -> tuple[int, bool]:
    """Host 0's `number`, and whether any host wants to stop (`ends`).

    Programs with collectives deadlock if hosts run different numbers of them. Each call
    also tells `parallel.watch` that this host makes progress.
    """
    if number_of() == 1:
        return number, ends
    of_hosts = _gather(np.array([number, ends], np.int32))
    return int(of_hosts[0, 0]), bool(of_hosts[:, 1].any())


def _gather(numbers: np.ndarray) -> np.ndarray:
    """The numbers of all hosts, [hosts, ...]."""
    from jax.experimental import multihost_utils

    watch.moved(waits=True)
    of_hosts = multihost_utils.process_allgather(numbers)
    watch.moved()
    return of_hosts
