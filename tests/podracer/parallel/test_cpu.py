"""The flags that XLA gets before it starts on a CPU."""

import os
import subprocess
import sys

import pytest

from podracer import parallel
from podracer.parallel import cpu

CONVOLUTION = """
import jax
from podracer import parallel
parallel.use_cpu_cores(1)
shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 4, 84, 84), (32, 4, 8, 8))]
convolve = jax.jit(lambda image, kernel: jax.lax.conv(image, kernel, (4, 4), "VALID"))
print(convolve.lower(*shapes).compile().as_text())
"""


@pytest.mark.core
def test_convolutions_are_not_handed_to_ynnpack():
    environment = os.environ | {"XLA_FLAGS": ""}
    command = [sys.executable, "-c", CONVOLUTION]
    program = subprocess.check_output(command, env=environment, text=True, timeout=300)
    assert "convolution(" in program and "ynn" not in program


def test_jax_may_have_started_with_the_same_number():
    """As where a user's module computes something while it is imported."""
    program = (
        "import jax; one = jax.numpy.ones(1); from podracer import parallel; "
        "parallel.use_cpu_cores(1); print(jax.device_count())"
    )
    environment = os.environ | {"XLA_FLAGS": "", "JAX_NUM_CPU_DEVICES": "-1"}
    command = [sys.executable, "-c", program]
    found = subprocess.check_output(command, env=environment, text=True, timeout=300)
    assert found.strip() == "1"


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        ("max 100000", 4),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("800000 100000", 4),
    ],
)
def test_a_process_uses_its_affinity_and_its_containers_quota(
    monkeypatch, tmp_path, quota, count
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(4), raising=False)
    monkeypatch.setattr(cpu, "QUOTA", tmp_path / "cpu.max")
    assert parallel.processors() == 4  # no such file
    cpu.QUOTA.write_text(quota)
    assert parallel.processors() == count
