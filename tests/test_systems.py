"""On which systems it runs: what Linux alone has is not needed elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

WINDOWS = """
import sys
import {package}  # and what it needs, which Windows has
ours = "podracer", "anakin", "sebulba", "envs_jax"
for name in [x for x in sys.modules if x.split(".")[0] in ours]:
    del sys.modules[name]
sys.platform = "win32"
sys.modules["fcntl"] = None  # as where there is none
try:
    import {package}
except ImportError as error:
    print(error)
"""
# Without affinity, /proc and control groups, as on macOS.
MACOS = """
import os, pathlib, sys, multiprocessing
del os.sched_getaffinity
os.process_cpu_count = os.cpu_count  # as Python 3.13 has it there
multiprocessing.set_start_method("spawn")
from podracer import parallel
from podracer.command import programs
from podracer.parallel import cpu
from podracer.training import memory
nowhere = pathlib.Path("/nowhere")
memory.CGROUP = memory.MEMINFO = programs.CPU = cpu.QUOTA = nowhere
assert parallel.processors() == os.cpu_count()
assert programs._cpu()
from anakin.command.subcommands import train
train([*"--env=catch --batch-size=4 --unroll-length=4 --total-steps=32".split(),
       *"--network.hidden-sizes=8 --quiet --cores=1".split(), f"--run={sys.argv[1]}"])
assert memory.available() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
"""


def printed(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", ["podracer", "anakin", "sebulba"])
def test_windows_is_refused_in_one_line(package):
    said = printed(WINDOWS.format(package=package))
    assert said.startswith(
        "podracer runs on Linux and macOS, and on Windows inside WSL"
    )
    assert said.count("\n") == 1


@pytest.mark.timeout(220)
def test_nothing_that_linux_alone_has_is_needed(tmp_path):
    printed(MACOS, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text()
