"""What each kernel of podracer.kernels is worth: training with it and without it, in turn.

    python -m benchmarks.kernels [--kernels blocking products ...] [--rounds 3]
        [--scale 1] [--report docs/results/kernels.md]

Each measurement is a process of its own, for which PODRACER_KERNELS leaves the kernel out or
not; a workload's steps/s are medians over the rounds, in which all take turns. `all` are the
kernels together against plain JAX. A kernel stays while a workload is at least 5 % faster
with it, or an environment alone twice as fast.
"""

import dataclasses
import datetime
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import rich
import tyro

from benchmarks.peers import contest
from benchmarks.peers.report import cpu
from podracer import parallel
from podracer.errors import UserError
from podracer.files import atomic
from podracer.kernels import switch

ALL = "all"
WORKLOADS = {  # KIND:BxT of benchmarks.peers, with /transitions shuffled; or ENVIRONMENT:B
    "blocking": ("cartpole:2048x32", "minatar-breakout:1024x64"),
    "collectives": ("cartpole:64x128",),
    "convolution": ("minatar-breakout:1024x64", "Pong-v5:64x20"),
    "foreign": ("CartPole-v1:64x128",),
    "products": ("cartpole:2048x32",),
    "shuffling": ("cartpole:2048x32/transitions",),
    "threefry": ("catch:2048",),
    "xla": ("minatar-breakout:1024x64", "Pong-v5:64x20"),
    ALL: ("cartpole:2048x32", "minatar-breakout:1024x64"),
}
SLOW = {
    "convolution": 0.1,
    ALL: 0.1,
}  # factor on the steps where plain JAX takes minutes
REPLACES = {
    "blocking": "`jax.grad` of a sum over sequences; a network's unroll",
    "collectives": "`lax.pmean` and `lax.psum` of a tree",
    "convolution": "`lax.conv_general_dilated`, `flax.linen.max_pool`",
    "foreign": "a call of `jax.ffi` with its effect",
    "products": "`lax.dot_general`, `jnp.concatenate`, `jax.nn.relu` of layers",
    "shuffling": "`jax.random.permutation`",
    "threefry": "JAX's hash for random numbers on a CPU",
    "xla": "XLA's own flags for a CPU",
    ALL: "plain JAX",
}
HEAD = """# Kernels

What only some machine computes faster is in `podracer/kernels/`: drop-ins for operations of
JAX and flax, off by one switch (`PODRACER_KERNELS=off`, or without some: `-xla,-blocking`). A
kernel stays while a workload is at least 5 % faster with it, or an environment alone twice as
fast. `python -m benchmarks.kernels --report docs/results/kernels.md` measures them and writes
this page. `loops` and XLA's options for a GPU have no effect on a CPU: see [gpu.md](gpu.md).

"""


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    kernels: tuple[str, ...] = tuple(WORKLOADS)
    rounds: int = 3
    scale: float = 1.0
    """factor on the usual number of steps of a measurement"""
    report: Path | None = None
    """page to write"""

    def __post_init__(self):
        if unknown := {*self.kernels} - {*WORKLOADS}:
            raise UserError(
                f"kernels: {', '.join(sorted(unknown))}: none of {', '.join(WORKLOADS)}"
            )


def command(workload: str, scale: float) -> list[str]:
    """The module and arguments of a workload's process, which prints its steps/s."""
    name, _, shuffle = workload.partition("/")
    if "x" not in name.partition(":")[2]:
        environment, _, batch_size = name.partition(":")
        return ["random_play", environment, batch_size, "100", str(3 * scale)]
    work = contest.parse(name, scale)._asdict() | {"cores": parallel.processors()}
    if shuffle:
        work["shuffle"] = shuffle
    return ["peers.ours", json.dumps(work)]


def steps_per_second(workload: str, kernels: str, scale: float) -> float:
    """One measurement, with PODRACER_KERNELS as it is given."""
    module, *arguments = command(workload, scale)
    output = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        env=os.environ | {switch.VARIABLE: kernels},
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,
        check=True,
    ).stdout.splitlines()[-1]
    printed = json.loads(output)
    return printed if isinstance(printed, float) else printed["steps_per_second"]


def rows(config: Config) -> Iterator[list[str]]:
    """A row for each kernel and workload: medians with and without it, and their ratio."""
    cases = [(kernel, x) for kernel in config.kernels for x in WORKLOADS[kernel]]
    speeds: dict[tuple, list[float]] = {}
    turns = [(*case, on) for case in cases for on in (True, False)] * config.rounds
    for kernel, workload, on in turns:
        kernels = "on" if on else "off" if kernel == ALL else f"-{kernel}"
        scale = config.scale * SLOW.get(kernel, 1.0)
        speed = steps_per_second(workload, kernels, scale)
        speeds.setdefault((kernel, workload, on), []).append(speed)
        rich.print(f"{workload}, {switch.VARIABLE}={kernels}: {speed:.3g} steps/s")
    for kernel, workload in cases:
        new, old = (
            statistics.median(speeds[kernel, workload, on]) for on in (True, False)
        )
        cells = (kernel, REPLACES[kernel], workload, f"{old:.3g}", f"{new:.3g}")
        yield [*cells, f"{new / old:.2f}"]


def page(config: Config) -> str:
    """Markdown: the machine, and the table."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    machine = (
        f"{parallel.processors()} CPUs ({cpu()}), jax {jax.__version__}, commit "
        f"{commit or 'unknown'}, {datetime.date.today()}; environment steps/s, medians of "
        f"{config.rounds} rounds:\n"
    )
    columns = "kernel", "in place of", "workload", "without", "with", "ratio"
    lines = [columns, ["---"] * len(columns), *rows(config)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{machine}\n{table}\n"


def main(config: Config) -> None:
    """Measures; prints the table, and writes the page."""
    table = page(config)
    if config.report:
        with atomic(config.report) as temporary:
            temporary.write_text(HEAD + table)
    rich.print(table)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
