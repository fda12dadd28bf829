"""TPU slices and their compiler, on a machine without a TPU (the extra `tpu-plan`).

libtpu compiles for any slice, present or not
(https://docs.jax.dev/en/latest/aot.html).
"""

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from podracer import command, imports
from podracer.errors import UserError
from podracer.plan import compiled

HELP = "the TPU slice to compile for: v5e:2x4, v3:32x32, Colab's v5e:1x1, ..."
ALONE = {  # for the process that compiles: not to look for a TPU or its hosts,
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # and not to keep others from compiling
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
CHILD = "PODRACER_COMPILES"  # in the environment of that process
MINUTES = 30  # limit of compilation
ONE_HOST = {"v5e": 8, "v6e": 8}  # chips up to which a slice is one machine
# cycles a second: arXiv:2304.01433, table 4; from v5e on what Google's FLOP/s amount to
# (cloud.google.com/tpu/docs): those of bfloat16 over two for each multiplier
CLOCKS = {
    "TPU v2": 0.70e9,
    "TPU v3": 0.94e9,
    "TPU v4": 1.05e9,
    "TPU v5 lite": 1.50e9,
    "TPU v5": 1.75e9,
    "TPU v6 lite": 1.75e9,
}


class Slice(NamedTuple):
    """A slice's cores, which this machine need not have."""

    name: str
    hosts: list[list[jax.Device]]  # the cores of each
    memory: int  # bytes of a core's memory that a program may use

    @property
    def cores(self) -> list[jax.Device]:
        """All of them, host by host."""
        return [core for host in self.hosts for core in host]

    @property
    def kind(self) -> str:
        """The kind of its chips."""
        return self.hosts[0][0].device_kind

    @property
    def clock(self) -> float | None:
        """Cycles per second, if known."""
        return CLOCKS.get(self.kind)

    def __str__(self) -> str:
        cores, hosts = len(self.cores), len(self.hosts)
        return (
            f"{self.name} ({self.kind}): {cores} core{'s'[: cores > 1]} of "
            f"{compiled.size(self.memory)} on {hosts} host{'s'[: hosts > 1]}"
        )


def choice(argv: Sequence[str]) -> Callable[[str | None], command.Choice]:
    """(value of `--tpu`) -> the flag. That raises UserError where the value is missing."""

    def chosen(name: str | None) -> command.Choice:
        if not name and not {"-h", "--help"} & {*argv}:
            raise UserError(f"--tpu is missing: {HELP}")
        return command.Choice("tpu", name or "", (), HELP)

    return chosen


def make_slice(name: str) -> Slice:
    """The slice of that name.

    Raises UserError where the compiler does not know it, or is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"the TPU compiler is not installed: {imports.install('tpu-plan')}, best in "
            "an environment of its own (it takes a gigabyte)"
        )
    from jax.experimental import topologies
    from jax.experimental.compilation_cache import compilation_cache

    os.environ |= ALONE
    # Programs for absent cores can be written to the persistent cache, but not read again.
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides at its first program whether there is a cache
    kind, _, shape = name.partition(":")
    chips, options = [int(n) for n in shape.split("x") if n.isdigit()], {}
    if chips and math.prod(chips) <= ONE_HOST.get(kind, 0):
        options["chips_per_host_bounds"] = [*chips, 1]
    if kind == "v4":  # as JAX runs it: a chip's two cores as one
        options["chip_config_name"] = "megacore"
    try:
        devices = topologies.get_topology_desc(name, "tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"--tpu is {name!r}: {str(error).splitlines()[0]}") from error
    hosts: dict[int, list[jax.Device]] = {}
    for device in sorted(devices, key=lambda x: x.id):
        hosts.setdefault(device.process_index, []).append(device)
    memory = compiled.available(devices[0])
    return Slice(name, [hosts[i] for i in sorted(hosts)], memory)


def alone(program: str, function: Callable, argv: Sequence[str]) -> None:
    """Runs `PROGRAM plan ARGV` in a process of its own, in which it calls `function`.

    The compiler may crash its process, and libtpu writes to stderr. Raises UserError where
    the command does there, and where the compiler crashed.
    """
    if os.environ.get(CHILD):
        return function(argv)
    try:
        done = subprocess.run(
            [sys.executable, "-m", program, "plan", *argv],
            env=os.environ | ALONE | {CHILD: "1"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"the TPU compiler took over {MINUTES} minutes") from None
    if done.returncode < 0:
        crashed = re.search(r"Check failed: (.*)", done.stderr)
        raise UserError(
            "the TPU compiler crashed: this slice, or this part of it, may not exist ("
            + (crashed[1] if crashed else f"signal {-done.returncode}")
            + ")"
        )
    if line := re.search(rf"^{program}: error: (.*)", done.stderr, re.MULTILINE):
        raise UserError(line[1])
    if done.returncode:
        sys.stderr.write(done.stderr)
        sys.exit(done.returncode)
