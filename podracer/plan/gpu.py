"""NVIDIA GPUs and their compiler, on a machine without a GPU (the extra `gpu-plan`).

JAX's plugin for CUDA compiles for any GPU that is described to it. Which of several kernels is the
fastest, only a GPU can tell: matrix products are cuBLAS's here, convolutions cuDNN's default.
"""

import importlib.util
import os
import re
from typing import NamedTuple

import jax

from podracer import imports
from podracer.errors import UserError
from podracer.plan import slices

PLUGIN = "jax_plugins.xla_cuda13"
# XLA's own products need a trial of several kernels: without it, it rejects some.
NO_TRIALS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
SHARE = 0.75  # of a GPU's memory, which JAX takes by default
MOST = 8  # GPUs of a host
KI, MI = 2**10, 2**20


class Kind(NamedTuple):
    """A GPU, by NVIDIA's data sheets and tuning guides (docs.nvidia.com/cuda)."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    threads: int  # of a multiprocessor
    shared: int  # bytes of shared memory of a multiprocessor
    cache: int  # bytes, L2
    memory: int  # bytes
    bandwidth: float  # bytes a second
    clock: float  # GHz


KINDS = {
    "t4": Kind("Tesla T4", (7, 5), 40, 1024, 64 * KI, 4 * MI, 15_100 * MI, 320e9, 1.59),
    "l4": Kind(
        "NVIDIA L4", (8, 9), 58, 1536, 100 * KI, 48 * MI, 22_500 * MI, 300e9, 2.04
    ),
    "a100": Kind(
        *("NVIDIA A100-SXM4-80GB", (8, 0), 108, 2048, 164 * KI, 40 * MI),
        *(81_150 * MI, 2.039e12, 1.41),
    ),
    "h100": Kind(
        *("NVIDIA H100 80GB HBM3", (9, 0), 132, 2048, 228 * KI, 50 * MI),
        *(81_000 * MI, 3.352e12, 1.98),
    ),
}


def make_slice(name: str) -> slices.Slice:
    """GPUs of one host: `h100` or `h100:8`.

    Raises UserError for a GPU that is not in `KINDS`, and where the compiler is not installed.
    """
    parts = re.fullmatch(rf"(\w+?)(?::([1-{MOST}]))?", name)
    kind = KINDS.get(parts[1]) if parts else None
    if kind is None:
        raise UserError(
            f"--gpu is {name!r}: choose {', '.join(KINDS)}; several GPUs of a host are "
            f"h100:2 to h100:{MOST}"
        )
    try:
        installed = importlib.util.find_spec(PLUGIN) is not None
    except ModuleNotFoundError:
        installed = False
    if not installed:
        raise UserError(
            f"the GPU compiler is not installed: {imports.install('gpu-plan')}, best in an "
            "environment of its own (it takes a gigabyte)"
        )
    from jax.experimental import topologies

    os.environ |= slices.ALONE
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {NO_TRIALS}".strip()
    slices.forget_cache()
    try:
        described = topologies.get_topology_desc(
            *(name, "cuda"),
            target_config=target(kind),
            topology=f"1x1x{parts[2] or 1}",
        )
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise UserError(f"--gpu is {name!r}: {str(error).splitlines()[0]}") from error
    return slices.Slice(name, [[*described.devices]], int(SHARE * kind.memory))


def target(kind: Kind) -> str:
    """XLA's description of a GPU, a GpuTargetConfigProto as text."""
    major, minor = kind.capability
    return f"""
        gpu_device_info {{
          name: "{kind.name}"
          device_vendor: "NVIDIA Corporation"
          cuda_compute_capability {{ major: {major} minor: {minor} }}
          core_count: {kind.multiprocessors}
          fpus_per_core: {64 if kind.capability in ((7, 5), (8, 0)) else 128}
          clock_rate_ghz: {kind.clock}
          device_memory_size: {kind.memory}
          memory_bandwidth: {kind.bandwidth:.0f}
          l2_cache_size: {kind.cache}
          shared_memory_per_core: {kind.shared}
          shared_memory_per_block: {48 * KI}
          shared_memory_per_block_optin: {kind.shared - (KI if major > 7 else 0)}
          registers_per_core_limit: {64 * KI}
          registers_per_block_limit: {64 * KI}
          threads_per_core_limit: {kind.threads}
          threads_per_block_limit: 1024
          threads_per_warp: 32
          thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
          block_dim_limit_x: {2**31 - 1} block_dim_limit_y: 65535 block_dim_limit_z: 65535
          device_address_bits: 64
          driver_version: "13.0.0" runtime_version: "13.0.0"
          compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
        device_description_str: "{kind.name}"
    """
