"""What programs on a GPU are compiled with; their compiler is asked in tests/podracer/plan/tpu."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from podracer import parallel
from podracer.parallel import cores, gpu


class Device(NamedTuple):
    platform: str
    number: int  # another one has its own options


def test_other_devices_have_no_options():
    assert gpu.compiler_options(jax.devices()[0]) == {}
    assert gpu.compiler_options(Device("tpu", 0)) == {}


@pytest.mark.parametrize(("number", "flag"), [*enumerate(gpu.CHOICES)])
def test_a_choice_of_the_users_is_kept(monkeypatch, number, flag):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_some_flag=1 --{flag}=0")
    assert gpu.compiler_options(Device("gpu", number)) == {}


def test_programs_are_compiled_with_the_options_of_their_cores(monkeypatch):
    """Asked of the first core, and given to XLA, which refuses what it does not know."""
    asked = []

    def options(device):
        asked.append(device)
        return {"xla_no_such_option": "1"}

    monkeypatch.setattr(cores, "compiler_options", options)
    mesh = parallel.make_mesh(1)
    shared = parallel.SHARED
    program = parallel.over_cores(lambda x: x + 1, mesh, (shared,), shared)
    assert asked == [mesh.devices[0]]
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        program(jnp.ones(()))
