"""What `--tpu` and `--gpu` name, and how a crash of a compiler is reported; the compilers are in tests/podracer/plan/tpu."""

import importlib.util
import subprocess

import jax
import pytest
from jax.experimental import topologies

from anakin.command import subcommands as anakin
from podracer.errors import UserError
from podracer.plan import flags, gpu, slices, tpu
from sebulba.command import subcommands as sebulba


def test_a_missing_compiler_is_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'jax\[tpu\]>=0.7.2'"):
        tpu.make_slice("v5e:2x4")
    with pytest.raises(UserError, match=r"pip install 'jax\[cuda13-local\]>=0.7.2'"):
        gpu.make_slice("h100:8")


@pytest.mark.parametrize("name", ["v100", "h100:", "h100:9", "h100:0", "H100"])
def test_an_unknown_gpu_is_one_line(name):
    with pytest.raises(
        UserError, match=f"--gpu is '{name}': choose t4, l4, a100, h100"
    ):
        gpu.make_slice(name)


def test_a_tpu_that_its_compiler_refuses_is_one_line_with_an_example(monkeypatch):
    def refuse(*_, **__):
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: of libtpu\nand its trace")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(tpu.os, "environ", {})
    monkeypatch.setattr(slices, "forget_cache", lambda: None)
    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    line = "^--tpu is 'v5e': .* of libtpu; write, for example, --tpu v5e:2x4$"
    with pytest.raises(UserError, match=line):
        tpu.make_slice("v5e")


@pytest.mark.parametrize("command", [anakin.plan, sebulba.plan])
def test_the_slice_must_be_named(monkeypatch, command):
    monkeypatch.setenv(flags.CHILD, "1")
    with pytest.raises(UserError, match="--tpu is missing: .*; or the GPUs: h100:8"):
        command(["--env", "catch"])
    with pytest.raises(UserError, match="--tpu and --gpu: leave one of them out"):
        command(["--tpu", "v5e:1x1", "--gpu", "h100"])


def ended(monkeypatch, code, stderr):
    def run(line, **options):
        assert line[1:] == ["-m", "anakin", "plan", "--tpu", "v5e:2x4"]
        assert options["timeout"] and options["env"]["JAX_PLATFORMS"] == "cpu"
        return subprocess.CompletedProcess(line, code, stderr=stderr)

    monkeypatch.delenv(flags.CHILD, raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    flags.alone("anakin", None, ["--tpu", "v5e:2x4"])


def test_a_compiler_that_gives_up_is_one_line(monkeypatch):
    with pytest.raises(UserError, match=r"compiler crashed: .*\(device_id < 2\)"):
        ended(monkeypatch, -6, "F1 x.cc] Check failed: device_id < 2\n*** stack\n")
    with pytest.raises(UserError, match="signal 11"):
        ended(monkeypatch, -11, "")


def test_its_process_speaks_as_the_command(monkeypatch, capsys):
    ended(monkeypatch, 0, "libtpu's own words\n")
    with pytest.raises(UserError, match="^batch_size is 9$"):
        ended(monkeypatch, 2, "libtpu\nanakin: error: batch_size is 9\n")
    assert not capsys.readouterr().err
    with pytest.raises(SystemExit):
        ended(monkeypatch, 1, "Traceback: a fault of ours\n")
    assert "a fault of ours" in capsys.readouterr().err
