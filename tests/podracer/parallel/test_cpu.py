"""The flags that XLA gets before it starts on a CPU."""

import os
import subprocess
import sys

import pytest

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


def test_flags_of_users_and_of_other_versions_are_kept():
    assert "INDIVIDUAL_DOT" in cpu.with_fast_convolutions("", "0.10.2")
    assert cpu.with_fast_convolutions("--a=1", "0.10.2").startswith("--a=1 --xla_cpu")
    assert cpu.with_fast_convolutions("--a=1", "0.11.0") == "--a=1"
    for chosen in (f"{cpu.YNNPACK}=", "a_file_of_flags"):
        assert cpu.with_fast_convolutions(chosen, "0.10.2") == chosen
    twice = cpu.with_fast_convolutions(cpu.with_fast_convolutions("", "0.10.2"))
    assert twice == cpu.with_fast_convolutions("", "0.10.2")
