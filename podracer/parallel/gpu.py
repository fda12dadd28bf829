"""XLA's options for programs on a GPU."""

import functools
import os

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

# Our kernels take microseconds and are too small to fill a GPU. XLA launches most of them in
# CUDA graphs. By default each kernel of a graph waits for the one before it, needed or not.
ORDER = "xla_gpu_command_buffer_scheduling_mode"
CHOICES = ORDER, "xla_gpu_graph_enable_concurrent_region"  # XLA_FLAGS that choose it


@functools.cache
def compiler_options(device: jax.Device) -> dict[str, str]:
    """XLA's options for a program on this device: on a GPU, independent kernels overlap.

    Empty on other devices, where XLA_FLAGS chooses the order of kernels, and where this version
    of XLA does not know the option.
    """
    chosen = any(flag in os.environ.get("XLA_FLAGS", "") for flag in CHOICES)
    if device.platform != "gpu" or chosen:
        return {}
    options = {ORDER: "CONCURRENT"}
    number = jax.ShapeDtypeStruct(
        (), jnp.float32, sharding=SingleDeviceSharding(device)
    )
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(number).compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return options
