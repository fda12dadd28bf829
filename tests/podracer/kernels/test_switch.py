"""Kernels are installed explicitly, and one switch turns them off."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from podracer import kernels
from podracer.errors import UserError
from podracer.kernels import switch

IMPORTS = """
import os, sys, importlib, pkgutil
before = dict(os.environ)
import jax
def text():
    return jax.jit(lambda: jax.random.bits(jax.random.key(0), (3,))).lower().as_text()
plain = text()
import podracer, anakin, sebulba, envs_jax
from podracer import kernels, parallel
for package in (anakin, sebulba):  # which import what they offer when it is asked for
    for name in package.__all__:
        getattr(package, name)
for package in (podracer.agents, podracer.networks, podracer.learning):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
assert not kernels.is_on("products")
assert os.environ == before and text() == plain, "an import changed the process"
parallel.use_cpu_cores(1)
print(kernels.is_on("products"), text() == plain, "XLA_FLAGS" in os.environ)
"""


def run(program, **variables):
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | variables
    environment["GRPC_VERBOSITY"] = "ERROR"  # sebulba sets it; gRPC reads it at import
    command = [sys.executable, "-c", program]
    output = subprocess.check_output(command, env=environment, text=True, timeout=300)
    return output.split()


def test_an_import_changes_nothing_and_use_cpu_cores_installs():
    assert run(IMPORTS)[:2] == ["True", "False"]


def test_plain_jax_is_a_variable_away():
    assert run(IMPORTS, PODRACER_KERNELS="off") == ["False", "True", "False"]


@pytest.fixture
def fresh(monkeypatch):
    """As in a process that has installed nothing."""
    monkeypatch.setattr(switch, "_installed", False)
    monkeypatch.setattr(switch, "_left_out", set())


def test_kernels_are_left_out_by_name(fresh, monkeypatch):
    monkeypatch.setenv("PODRACER_KERNELS", "-xla, -blocking")
    kernels.install()
    on = [name for name in switch.NAMES if kernels.is_on(name)]
    assert {*switch.NAMES} - {*on} == {"xla", "blocking"}


def test_what_is_off_stays_off_where_a_run_installs(fresh):
    kernels.off()
    kernels.install()
    assert not any(kernels.is_on(name) for name in switch.NAMES)


def test_without_is_for_a_block(fresh):
    kernels.install()
    with kernels.without("loops"):
        assert not kernels.is_on("loops") and kernels.is_on("products")
    assert kernels.is_on("loops")


@pytest.mark.parametrize("value", ["convolution", "-convolutions", "none"])
def test_an_unknown_kernel_is_one_line(fresh, monkeypatch, value):
    monkeypatch.setenv("PODRACER_KERNELS", value)
    with pytest.raises(UserError, match=f"PODRACER_KERNELS is '{value}'"):
        kernels.install()
    assert not kernels.is_on("products")


def test_programs_without_kernels_are_plain_jax():
    def program(x):
        x = kernels.concatenate([x, x], -1)
        return kernels.relu(kernels.dot_general(x, x.T, (((1,), (0,)), ((), ()))))

    def plain(x):
        x = jnp.concatenate([x, x], -1)
        return jax.nn.relu(jax.lax.dot_general(x, x.T, (((1,), (0,)), ((), ()))))

    x = jnp.ones((9, 2))
    with kernels.without():
        assert str(jax.make_jaxpr(program)(x)) == str(jax.make_jaxpr(plain)(x))
