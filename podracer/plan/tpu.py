"""TPU slices and their compiler, on a machine without a TPU (the extra `tpu-plan`).

libtpu compiles for any slice, present or not
(https://docs.jax.dev/en/latest/aot.html).
"""

import importlib.util
import math
import os

import jax

from podracer import imports
from podracer.errors import UserError
from podracer.plan import compiled, slices

EXAMPLE = "v5e:2x4"
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


def make_slice(name: str) -> slices.Slice:
    """The slice of that name.

    Raises UserError where the compiler does not know it, or is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"the TPU compiler is not installed: {imports.install('tpu-plan')}, best in "
            "an environment of its own (it takes a gigabyte)"
        )
    from jax.experimental import topologies

    os.environ |= slices.ALONE
    slices.forget_cache()
    kind, _, shape = name.partition(":")
    chips, options = [int(n) for n in shape.split("x") if n.isdigit()], {}
    if chips and math.prod(chips) <= ONE_HOST.get(kind, 0):
        options["chips_per_host_bounds"] = [*chips, 1]
    if kind == "v4":  # as JAX runs it: a chip's two cores as one
        options["chip_config_name"] = "megacore"
    try:
        devices = topologies.get_topology_desc(name, "tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--tpu is {name!r}: {reason}; write, for example, --tpu {EXAMPLE}"
        ) from error
    hosts: dict[int, list[jax.Device]] = {}
    for device in sorted(devices, key=lambda x: x.id):
        hosts.setdefault(device.process_index, []).append(device)
    cores = [hosts[i] for i in sorted(hosts)]
    memory = compiled.available(devices[0])
    return slices.Slice(name, cores, memory, CLOCKS.get(devices[0].device_kind))
