"""XLA's options with which our programs are faster, on a CPU and on a GPU."""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib

from podracer.kernels.switch import is_on

KNOWN = "0.10.", "0.11.", "0.12."  # the versions of jaxlib in which `CPU` was tried
CPU = {  # flags of XLA
    # Only matrix products go to YNNPACK: its convolutions are half as fast as XLA's own.
    "--xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    # XLA's default is 256 bits even with AVX-512.
    "--xla_cpu_prefer_vector_width": "512",
}
# Our kernels take microseconds and are too small to fill a GPU. XLA launches most of them in
# CUDA graphs. By default each kernel of a graph waits for the one before it, needed or not.
ORDER = "xla_gpu_command_buffer_scheduling_mode"
CHOICES = ORDER, "xla_gpu_graph_enable_concurrent_region"  # XLA_FLAGS that choose it


def cpu_flags(flags: str, version: str = jaxlib.__version__) -> str:
    """XLA_FLAGS with `CPU`, for that version of jaxlib; a choice of the user's is kept.

    Another version might not know a flag, and XLA aborts where it does not know one.
    Flags that do not begin with "-" are the name of a file.
    """
    is_file = flags.strip() and not flags.strip().startswith("-")
    if is_file or not version.startswith(KNOWN) or not is_on("xla"):
        return flags
    ours = (f"{name}={value}" for name, value in CPU.items() if name not in flags)
    return " ".join([flags, *ours]).strip()


def compiler_options(sharding: Any) -> dict[str, str]:
    """XLA's options for a program on a device: on a GPU, independent kernels overlap.

    Empty on other devices, where XLA_FLAGS chooses the order of kernels, and where this version
    of XLA does not know the option. `sharding` is of an array on that device alone.
    """
    chosen = any(flag in os.environ.get("XLA_FLAGS", "") for flag in CHOICES)
    (device,) = sharding.device_set
    if device.platform != "gpu" or chosen or not is_on("xla"):
        return {}
    options = {ORDER: "CONCURRENT"}
    return options if _is_known(sharding, ORDER) else {}


@functools.cache
def _is_known(sharding: Any, option: str) -> bool:
    """Whether this version of XLA compiles with the option."""
    number = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding)
    program = jax.jit(lambda x: x + 1, compiler_options={option: "CONCURRENT"})
    try:
        program.lower(number).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
