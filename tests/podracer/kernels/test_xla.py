"""XLA's options for a CPU and a GPU, whose compiler is asked in tests/podracer/plan/tpu."""

from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from podracer import kernels, parallel
from podracer.kernels import xla


class Device(NamedTuple):
    platform: str
    number: int  # another one has its own options


def test_other_devices_have_no_options():
    assert kernels.compiler_options(SingleDeviceSharding(jax.devices()[0])) == {}
    assert kernels.compiler_options(on(Device("tpu", 0))) == {}


def on(device):
    return SimpleNamespace(device_set={device})


@pytest.mark.parametrize(("number", "flag"), [*enumerate(xla.CHOICES)])
def test_a_choice_of_the_users_is_kept(monkeypatch, number, flag):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_some_flag=1 --{flag}=0")
    assert kernels.compiler_options(on(Device("gpu", number))) == {}


def test_programs_are_compiled_with_the_options_of_their_cores(monkeypatch):
    """Asked of the first core, and given to XLA, which refuses what it does not know."""
    asked = []

    def options(sharding):
        asked.extend(sharding.device_set)
        return {"xla_no_such_option": "1"}

    monkeypatch.setattr(kernels, "compiler_options", options)
    mesh = parallel.make_mesh(1)
    shared = parallel.SHARED
    program = parallel.over_cores(lambda x: x + 1, mesh, (shared,), shared)
    assert asked == [mesh.devices[0]]
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        program(jnp.ones(()))


def test_flags_of_users_and_of_other_versions_are_kept():
    ours = kernels.cpu_flags("", "0.10.2")
    assert ours.split() == [f"{name}={value}" for name, value in xla.CPU.items()]
    assert kernels.cpu_flags("--a=1", "0.10.2") == f"--a=1 {ours}"
    assert kernels.cpu_flags("--a=1", "0.12.0.1") == f"--a=1 {ours}"
    for unknown in "0.9.2", "0.13.0", "0.1.0":
        assert kernels.cpu_flags("--a=1", unknown) == "--a=1"
    assert kernels.cpu_flags(ours, "0.10.2") == ours
    assert kernels.cpu_flags("a_file_of_flags", "0.10.2") == "a_file_of_flags"
    for name in xla.CPU:
        chosen = kernels.cpu_flags(f"{name}=", "0.10.2")
        assert chosen.startswith(f"{name}= --") and chosen.count(name) == 1
