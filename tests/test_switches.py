"""JAX's own switches, which users set: a run works, or says in one line why not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ANAKIN = "anakin", "catch", "--cores=2", "--updates-per-report=2"
SEBULBA = "sebulba", "jax:catch", "--threads-per-core=1"
LONGER = pytest.mark.slow  # of the switch's other architecture, or of a rarer switch


def train(program, env, *flags, run, **switches):
    """A run of a few updates, in a process of its own: switches are read at import."""
    sizes = "--batch-size=4", "--unroll-length=4", "--network.hidden-sizes=8"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    return subprocess.run(
        [
            *(sys.executable, "-m", program, "train", f"--env={env}", *sizes, *flags),
            *("--total-steps=64", "--quiet", *run),
        ],
        env=kept | {"JAX_PLATFORMS": "cpu"} | switches,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("how", [ANAKIN, pytest.param(SEBULBA, marks=LONGER)])
@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("JAX_ENABLE_X64", "1"),
        pytest.param("JAX_DEBUG_NANS", "1", marks=LONGER),
        pytest.param("JAX_CHECK_TRACER_LEAKS", "1", marks=LONGER),
        pytest.param("JAX_NUMPY_RANK_PROMOTION", "raise", marks=LONGER),  # all tests do
        pytest.param("JAX_DEFAULT_PRNG_IMPL", "unsafe_rbg", marks=LONGER),
        pytest.param("JAX_DEFAULT_MATMUL_PRECISION", "highest", marks=LONGER),
        pytest.param("JAX_DEBUG_INFS", "1", marks=LONGER),
        pytest.param("JAX_LOG_COMPILES", "1", marks=LONGER),
        pytest.param("JAX_THREEFRY_PARTITIONABLE", "0", marks=LONGER),
        pytest.param("JAX_TRACEBACK_FILTERING", "off", marks=LONGER),
    ],
)
@pytest.mark.timeout(330)
def test_a_run_works_with_a_switch(how, switch, value, tmp_path):
    done = train(*how, run=[f"--run={tmp_path / 'run'}"], **{switch: value})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) >= 2


@pytest.mark.parametrize("how", [ANAKIN, pytest.param(SEBULBA, marks=LONGER)])
@pytest.mark.parametrize(
    ("switch", "value", "line"),
    [
        ("JAX_DISABLE_JIT", "1", "JAX_DISABLE_JIT is True, but a run is one compiled"),
        ("JAX_NUMPY_DTYPE_PROMOTION", "strict", "JAX_NUMPY_DTYPE_PROMOTION is strict"),
    ],
)
def test_a_switch_is_refused_in_one_line(how, switch, value, line, tmp_path):
    done = train(*how, run=[f"--run={tmp_path / 'run'}"], **{switch: value})
    assert done.returncode == 2
    assert line in done.stderr and "unset it" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.timeout(330)
def test_a_run_is_not_resumed_with_other_random_keys(tmp_path):
    done = train(*ANAKIN, run=[f"--run={tmp_path}"], JAX_DEFAULT_PRNG_IMPL="rbg")
    assert done.returncode == 0, done.stderr
    resumed = [f"--resume={tmp_path}", "--total-steps=80", "--allow-changes"]
    done = train(*ANAKIN, run=resumed)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.rstrip().endswith("resume with JAX_DEFAULT_PRNG_IMPL=rbg")
