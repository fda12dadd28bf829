"""Virtual CPU devices, one for each core by default, and the threads that they need."""

import os
from collections.abc import Sequence
from pathlib import Path

import jax

from podracer import kernels
from podracer.errors import UserError, check_range
from podracer.parallel.mesh import check_switches

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of CPU per period
THREADS, THREADS_PER_CORE = "PJRT_NPROC", 2  # of XLA's thread pool
MOST_CPU_CORES = 256  # virtual devices; thousands would take minutes to start


def cpu_cores(share: int) -> int:
    """The number of virtual CPU devices: JAX_NUM_CPU_DEVICES if set (where several processes
    share a machine), or the largest number of cores that divides `share`."""
    count = jax.config.jax_num_cpu_devices
    return (
        count
        if count > 0
        else max(n for n in range(1, processors() + 1) if share % n == 0)
    )


def processors() -> int:
    """The number of CPUs that this process may use, at least 1.

    Fewer than the machine has where a batch system or `taskset` set the affinity, or where a
    container has a quota (cgroup v2).
    """
    try:
        time, period = QUOTA.read_text().split()
        return max(1, min(_scheduled(), int(time) // int(period)))
    except (OSError, ValueError):  # no container, or "max"
        return _scheduled()


def _scheduled() -> int:
    """The number of CPUs on which this process may be scheduled: XLA's number of threads."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def use_cpu_cores(count: int | None = None, apart: bool = False) -> None:
    """Splits a CPU into `count` virtual devices, by default one per core (`cpu_cores`).

    `apart` is for programs without collectives, as a population's: see `check_threads`.
    Installs `podracer.kernels`, some of which are flags that are added to XLA_FLAGS.
    Raises UserError for an impossible number, or if JAX has already started with another
    one on the CPU: call it before anything is computed.
    """
    check_switches()
    count = cpu_cores(0) if count is None else count
    check_range("cores", count, 1, MOST_CPU_CORES)
    kernels.install()
    if flags := kernels.cpu_flags(os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = flags
    if apart:
        os.environ.setdefault(THREADS, str(THREADS_PER_CORE * count))
    if jax.config.jax_num_cpu_devices != count:
        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError:
            started = jax.local_devices()
            if started[0].platform != "cpu" or len(started) == count:
                return
            raise UserError(
                f"cores is {count}, but JAX has started with {len(started)} on this CPU, as "
                "something was computed before (gymnax does so when it is imported): set "
                f"JAX_NUM_CPU_DEVICES={count}, or keep constants of imported modules in "
                "NumPy and call use_cpu_cores first"
            ) from None


def check_threads(devices: Sequence[jax.Device]) -> None:
    """Raises UserError where XLA would deadlock: a waiting core blocks one of its threads.

    On a CPU with as many threads as cores, programs without collectives deadlock on parts of
    their own work (jaxlib 0.10.2: with 2 cores and 2 threads; never with 3 or more).
    """
    threads = int(os.environ.get(THREADS) or _scheduled())
    cores = len(devices) if devices[0].platform == "cpu" else 1
    if 1 < cores > threads // THREADS_PER_CORE:
        raise UserError(
            f"cores is {cores}, for which {threads} threads are too few (they would "
            f"deadlock): use cores=1, or set {THREADS}={THREADS_PER_CORE * cores} before "
            "JAX starts, as parallel.use_cpu_cores(n, apart=True) does"
        )
