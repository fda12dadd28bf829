"""The tests' own machine: eight virtual CPU cores, on any computer, set before jax loads."""

import importlib.metadata
import os
import shutil
import signal
import tempfile

import pytest

flags = ["--xla_force_host_platform_device_count=8"]
if not os.environ.get("PODRACER_TESTS_OPTIMIZED"):  # see tests/jax_internals/README.md
    # Programs run once or twice here: compiling them costs a quarter without optimizations,
    # and again a sixth less as one piece and without expensive passes.
    flags += [
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
# XLA aborts at a flag that it does not know.
jaxlib = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
if jaxlib < (0, 11):
    flags += ["--xla_cpu_use_fusion_emitters=false"]
if jaxlib > (0, 7):
    flags += [
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=10",
        "--xla_cpu_collective_call_terminate_timeout_seconds=300",
    ]

# Variables rather than jax.config: the processes that tests start inherit them.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # nobody reads the lines of an operation here
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    "PJRT_NPROC": "32",  # threads; cores that must meet in an average each hold one
    "XLA_FLAGS": " ".join(flags),
}

# Where a shell that starts us in the background ignores them, the processes of tests would.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def kernels():
    """As a run installs them; PODRACER_KERNELS=off leaves them out."""
    from podracer import kernels  # not before the variables of jax

    kernels.install()


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """A process forgets what a file of tests has compiled.

    Three share a machine, and one that keeps all becomes a sixth slower, at 4 GiB.
    """
    yield
    import jax  # not before its variables

    jax.clear_caches()


def pytest_configure():
    """Give this run a folder, with a compilation cache for the processes that tests start."""
    folder = tempfile.mkdtemp(prefix="podracer-tests-")
    os.environ |= {
        "PODRACER_TESTS": folder,
        "JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled",
    }


def pytest_unconfigure():
    shutil.rmtree(os.environ["PODRACER_TESTS"], ignore_errors=True)
