"""Speed against cores and hosts (arXiv:2104.06272, Figs 4a and 4b), and what averaging costs.

    python -m benchmarks.scaling [--cores 1 2 4 8] [--hosts 1 2] [--seconds 5]

Real processes on this machine, one setting after another, with `podracer launch local`:

* Anakin by cores and by hosts; weak scaling keeps the environments of a core, strong
  scaling those of all (Fig 4a is weak);
* the same with agents that do not average (on one host): the difference is its cost;
* Sebulba by the actors' batch size (Fig 4b), and replicated over hosts.

Virtual cores share this machine's CPUs: more of them than CPUs cannot be faster, and the
speed that they lose is the cost of synchronization. The last table is a **calculation** for
pods, not a measurement: the given seconds of an update, and those for averaging its
gradients over links of a published bandwidth.
"""

import dataclasses
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import rich.console
import rich.progress
import rich.table
import tyro

from podracer.metrics import human

LIMIT = 300.0  # seconds, for a measurement
# Bytes/s that a core sends over all its links. v3: four of 656 Gbit/s a chip of two cores
# (Jouppi et al., CACM 63(7), 2020); v5e: 1,600 Gbit/s a chip (Google Cloud's TPU v5e page).
LINKS = {"v3": 4 * 656e9 / 8 / 2, "v5e": 1600e9 / 8}
POD_CORES = (16, 128, 2_048)
HOP_SECONDS = 1e-6  # assumed latency from chip to chip


@dataclasses.dataclass(frozen=True)
class Setting:
    """A measurement."""

    architecture: str = "anakin"
    scaling: str = "weak"  # anakin: or strong; sebulba: batch, hosts
    hosts: int = 1
    cores: int = 1  # of each host
    batch_size: int = 1_024  # anakin: of all cores; sebulba: of an actor thread
    average: bool = True


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure and to calculate."""

    cores: tuple[int, ...] = (1, 2, 4, 8)
    hosts: tuple[int, ...] = (1, 2)
    batch_size: int = 1_024
    """environments of a core (weak scaling), or of all cores (strong scaling)"""
    actor_batch_sizes: tuple[int, ...] = (32, 64, 128)
    unroll_length: int = 32
    seconds: float = 5.0
    """of each measurement, after compilation"""
    rounds: int = 3
    """repetitions of all settings in turn; the tables show medians"""
    update_seconds: tuple[float, ...] = (0.01, 0.001, 0.0001)
    """seconds of an update on one core, for the calculation"""
    out: Path = Path("scaling.png")
    one: str = ""
    """one setting as JSON, to measure in this process; used by the benchmark itself"""


def settings(config: Config) -> Iterator[Setting]:
    """All of them."""
    for scaling, cores, average in itertools.product(
        ("weak", "strong"), config.cores, (True, False)
    ):
        size = config.batch_size * (cores if scaling == "weak" else 1)
        yield Setting("anakin", scaling, 1, cores, size, average)
    for scaling, hosts in itertools.product(("weak", "strong"), config.hosts[1:]):
        size = config.batch_size * (hosts if scaling == "weak" else 1)
        yield Setting("anakin", scaling, hosts, 1, size)
    for size in config.actor_batch_sizes:
        yield Setting("sebulba", "batch", 1, 2, size)
    for hosts in config.hosts:
        yield Setting("sebulba", "hosts", hosts, 2, config.actor_batch_sizes[0])


def measured(setting: Setting, config: Config) -> dict[str, float]:
    """Steps/s of a setting, in processes of their own."""
    told = dataclasses.replace(config, one=json.dumps(dataclasses.asdict(setting)))
    numbers = ("unroll_length", "seconds", "one")
    flags = [f"--{name.replace('_', '-')}={getattr(told, name)}" for name in numbers]
    launch = ("launch", "local", str(setting.hosts), "--cores", str(setting.cores))
    done = subprocess.run(
        [sys.executable, "-m", "podracer", *launch, "--"]
        + [sys.executable, "-m", "benchmarks.scaling", *flags],
        stdout=subprocess.PIPE,
        timeout=LIMIT,
        text=True,
        check=True,
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith("[0] {")]
    return json.loads(lines[-1].removeprefix("[0] "))


def measure(setting: Setting, config: Config) -> dict[str, float]:
    """In this process: steps/s after compilation, and the parameters' bytes."""
    from podracer.parallel import hosts

    hosts.initialize()
    import jax

    from podracer import networks, parallel
    from podracer.agents import impala

    parallel.use_cpu_cores()
    train, specs = (anakin_of if setting.architecture == "anakin" else sebulba_of)(
        setting
    )
    network = networks.actor_critic(*specs)
    axis = parallel.CORE if setting.average else None
    agent = impala.make_agent(impala.Config(), network, parallel.Average(axis))
    begun: list[float] = []  # when everything was compiled
    rows = []
    for state, row in train(
        agent,
        unroll_length=config.unroll_length,
        total_steps=10**12,
        stopped=lambda: bool(rows) and time.monotonic() > begun[0] + config.seconds,
    ):
        if begun and row:
            rows.append(row)
        begun.append(time.monotonic())
    steps = sum(row["steps_per_second"] * row["seconds"] for row in rows)
    params = jax.tree.leaves(parallel.on_host(state.learner.shared.params))
    return {
        "steps_per_second": steps / sum(row["seconds"] for row in rows),
        "bytes": sum(x.nbytes for x in params),
    }


def anakin_of(setting: Setting) -> tuple[Callable, tuple[Any, Any]]:
    """Training in our CartPole, and its specs."""
    import anakin
    import envs_jax

    environment = envs_jax.make("cartpole")
    train = partial(
        anakin.train,
        environment=environment,
        batch_size=setting.batch_size,
        updates_per_report=max(1, 4_096 // setting.batch_size),
    )
    return train, (environment.observation_spec(), environment.action_spec())


def sebulba_of(setting: Setting) -> tuple[Callable, tuple[Any, Any]]:
    """The same in EnvPool's."""
    import jax

    import sebulba
    from sebulba import host_environments
    from sebulba.cores import split

    name, size = "CartPole-v1", setting.batch_size
    options = host_environments.default_options(name)

    def make(thread: int) -> Any:
        seed = host_environments.first_seed(0, thread, size)
        return host_environments.make(name, size, seed, 1, options)

    train = partial(
        sebulba.train,
        make_environment=make,
        cores=split(jax.local_devices()),
        trajectories_per_report=10,
    )
    example = make(0)
    return train, (example.observation_spec(), example.action_spec())


Measured = dict[Setting, dict[str, float]]


def tables(found: Measured, config: Config) -> Iterator[rich.table.Table]:
    """One for each kind of scaling, one for averages, and the calculation."""
    for architecture, scaling in dict.fromkeys(
        (x.architecture, x.scaling) for x in found
    ):
        title = f"{architecture}, {scaling}"
        result = rich.table.Table(
            "hosts", "cores", "B", "steps/s", "of the first", title=title
        )
        chosen = [
            x
            for x in found
            if (x.architecture, x.scaling, x.average) == (architecture, scaling, True)
        ]
        first = found[chosen[0]]["steps_per_second"]
        for x in chosen:
            speed = found[x]["steps_per_second"]
            numbers = (x.hosts, x.cores, x.batch_size, human(speed))
            result.add_row(*map(str, numbers), f"{speed / first:.2f}")
        yield result
    yield averages(found, config)
    yield calculation(found, config)


def averages(found: Measured, config: Config) -> rich.table.Table:
    """The same work on more cores: time of an update with averaging and without."""
    result = rich.table.Table(
        "cores", "us with", "us without", "us of averaging", title="averaging, strong"
    )
    for x in found:
        alone = dataclasses.replace(x, average=False)
        if x.scaling == "strong" and x.average and alone in found:
            steps = x.batch_size * config.unroll_length
            times = [1e6 * steps / found[y]["steps_per_second"] for y in (x, alone)]
            cells = (*times, times[0] - times[1])
            result.add_row(str(x.cores), *(f"{cell:,.0f}" for cell in cells))
    return result


def averaging_seconds(cores: int, size: float, links: float) -> float:
    """Of an all-reduce on a square torus: what passes the links, and the way across it.

    A bandwidth-optimal one sends 2 (N - 1) / N of its bytes from every core
    (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009).
    """
    way = 2 * 2 * (math.sqrt(cores) - 1) * HOP_SECONDS
    return 2 * (cores - 1) / cores * size / links + way


def calculation(found: Measured, config: Config) -> rich.table.Table:
    """Calculated efficiency: the speed of N cores over N times that of one core."""
    size = next(x["bytes"] for x in found.values())
    result = rich.table.Table(
        "links",
        "update on one core",
        *(f"{n:,} cores" for n in POD_CORES),
        title=f"calculated, not measured: efficiency with {size:,.0f} bytes of gradients",
    )
    for (name, links), update in itertools.product(
        LINKS.items(), config.update_seconds
    ):
        shares = (
            update / (update + averaging_seconds(n, size, links)) for n in POD_CORES
        )
        result.add_row(name, f"{1e3 * update:g} ms", *(f"{x:.1%}" for x in shares))
    return result


def draw(found: Measured, config: Config) -> None:
    """Fig 4a's counterpart, and Fig 4b's."""
    from matplotlib.figure import Figure

    from podracer.runs import plot

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for scaling, by in itertools.product(("weak", "strong"), ("cores", "hosts")):
        points = [
            (getattr(x, by), found[x]["steps_per_second"])
            for x in found
            if (x.architecture, x.scaling, x.average) == ("anakin", scaling, True)
            and (x.hosts == 1 if by == "cores" else x.cores == 1)
        ]
        left.plot(*zip(*points), marker="o", label=f"{scaling}, {by}")
    left.set(title="Anakin", xlabel=f"cores or hosts, on {os.cpu_count()} CPUs")
    batches = [
        (x.batch_size, found[x]["steps_per_second"])
        for x in found
        if x.scaling == "batch"
    ]
    right.plot(*zip(*batches), marker="o")
    right.set(title="Sebulba", xlabel="actor batch size")
    for axes in (left, right):
        axes.set_ylabel("environment steps/s")
        axes.set_ylim(0)
        axes.grid(alpha=0.3)
    left.legend()
    plot.save(figure, config.out)


def main(config: Config) -> None:
    """Measures all settings in turn and prints the medians."""
    if config.one:
        found = measure(Setting(**json.loads(config.one)), config)
        print(json.dumps(found), flush=True)
        return
    turns = [*itertools.product(range(config.rounds), settings(config))]
    rounds: dict[Setting, list[dict[str, float]]] = {}
    for _, setting in rich.progress.track(turns, "measuring"):
        rounds.setdefault(setting, []).append(measured(setting, config))
    found = {
        setting: {name: statistics.median(x[name] for x in got) for name in got[0]}
        for setting, got in rounds.items()
    }
    console = rich.console.Console(width=100)
    for table in tables(found, config):
        console.print(table)
    draw(found, config)
    console.print(f"drawn in {config.out}")


if __name__ == "__main__":
    main(tyro.cli(Config))
