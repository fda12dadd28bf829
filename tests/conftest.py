"""The tests' own machine: eight virtual CPU cores, on any computer, set before jax loads."""

import contextlib
import gc
import hashlib
import importlib.metadata
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

# Programs that earlier runs have compiled; they go with the environment whose jax made them.
COMPILED = Path(sys.prefix) / "compiled"
DAYS = 3  # after which an unused one is removed

# XLA aborts at a flag that it does not know.
jaxlib = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
flags = ["--xla_force_host_platform_device_count=8"]
if not os.environ.get("PODRACER_TESTS_OPTIMIZED"):  # see tests/jax_internals/README.md
    # Programs run once or twice here: compiling them costs a quarter without optimizations,
    # and again a sixth less as one piece and without expensive passes.
    flags += [
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
    if jaxlib > (0, 9):
        flags += ["--xla_cpu_opt_preset=FAST_COMPILE"]  # an eighth less again
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
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",  # their folder would be in each key
    "PJRT_NPROC": "32",  # threads; cores that must meet in an average each hold one
    "XLA_FLAGS": " ".join(flags),
}

# XLA compiles its own hash of random numbers in less time than ours, to the same bits. The tests of
# the kernels have ours, and so have all on the oldest jax.
if jaxlib > (0, 7):
    os.environ.setdefault("PODRACER_KERNELS", "-threefry")

# Tracing makes objects by the million, which Python would search for cycles again and again.
gc.set_threshold(50_000, 20, 20)

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


@pytest.fixture(scope="module")
def all_kernels(kernels):
    """Those too that other tests leave out."""
    from podracer.kernels import switch, threefry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switch, "_left_out", set())
        patch.delenv(switch.VARIABLE, raising=False)
        threefry.register()
        yield


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """A process forgets what a file of tests has compiled.

    Three share a machine, and one that keeps all becomes a sixth slower, at 4 GiB.
    """
    yield
    import jax  # not before its variables

    jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def shared_programs():
    """What one process has compiled, the others and the next run find."""
    yield
    import jax  # not before its variables
    from jax.experimental.compilation_cache import compilation_cache

    from podracer.command import programs

    if not jax.config.jax_enable_compilation_cache:  # a plan turns it off
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
    own = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    programs.remove_damaged(own)  # a killed process left it half-written
    link(own, COMPILED)
    link(COMPILED, own)


def link(source: Path, target: Path) -> None:
    """Give a folder the programs of another, each at once and whole."""
    there = set(os.listdir(target))
    for name in os.listdir(source):
        if name.endswith("-cache") and name not in there:
            # Another process may be as far, or remove it.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.link(source / name, target / name)


def pytest_addoption(parser):
    text = "leave out the examples (marker shows) that have passed as their files are"
    parser.addoption("--changed", action="store_true", help=text)


def passed(item):
    """Where the cache of pytest says that an example has passed with its files as they are."""
    shows = item.get_closest_marker("shows")
    texts = [Path(file).read_bytes() for file in (*shows.args, item.path)]
    name = f"{sys.prefix} {item.nodeid}".encode()
    return f"shows/{hashlib.sha256(b''.join([name, *texts])).hexdigest()}"


# These come first: if a long file comes last, one worker runs it and the others wait. pytest sorts
# what it collects, whatever the order of `testpaths`.
LONGEST = (
    "tests/anakin",
    "tests/benchmarks/test_smoke",
    "tests/test_docs",
    "tests/sebulba",
)


def order(item):
    """The longest files first."""
    begins = [number for number, x in enumerate(LONGEST) if item.nodeid.startswith(x)]
    return begins[0] if begins else len(LONGEST)


def pytest_collection_modifyitems(config, items):
    items.sort(key=order)
    if config.getoption("changed"):
        examples = [item for item in items if item.get_closest_marker("shows")]
        known = [item for item in examples if config.cache.get(passed(item), False)]
        config.hook.pytest_deselected(items=known)
        items[:] = [item for item in items if item not in known]


def pytest_runtest_makereport(item, call):
    if call.when == "call" and not call.excinfo and item.get_closest_marker("shows"):
        item.config.cache.set(passed(item), True)


def pytest_configure(config):
    """Give this process a folder, with the compiled programs for it and those that it starts."""
    folder = tempfile.mkdtemp(prefix="tests-", dir=sys.prefix)
    own = Path(folder) / "compiled"
    os.environ |= {"PODRACER_TESTS": folder, "JAX_COMPILATION_CACHE_DIR": str(own)}
    import jax  # not before its variables

    from podracer.command import programs

    # Set here too: the conftest.py of a folder may have imported jax before.
    jax.config.update("jax_compilation_cache_dir", str(own))
    COMPILED.mkdir(exist_ok=True)
    if not hasattr(config, "workerinput"):
        programs.remove_unused(COMPILED, days=DAYS)
        remove_abandoned()
    own.mkdir()
    link(COMPILED, own)
    (own / "checked").touch()  # what others compiled is, see `programs.remove_damaged`


def remove_abandoned():
    """Remove the folders of runs that were killed."""
    for folder in Path(sys.prefix).glob("tests-*"):
        if folder.stat().st_mtime < time.time() - DAYS * 24 * 3600:
            shutil.rmtree(folder, ignore_errors=True)


def pytest_unconfigure():
    shutil.rmtree(os.environ["PODRACER_TESTS"], ignore_errors=True)
