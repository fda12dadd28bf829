"""PPO's speed beside that of its peers, and beside what the machine allows.

    python -m benchmarks.ppo [--settings 2048x32 2048x128 64x128] [--repeats 3] [--floor]

CartPole, separate actor and critic of 2 x 64 tanh units, 4 epochs of 4 minibatches, the
same number of steps for all, without compilation, evaluation and normalization.
podracer's Anakin, rejax and brax take turns, each measurement in its own process;
peers run in virtual environments that are created on first use (`benchmarks.peers`).

The limit is the speed at which the network's matrix products and tanh alone would run,
each as fast as plain JAX computes it in cache. `--floor` measures only that.
"""

import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import rich.console
import rich.progress
import rich.table
import tyro

import anakin
import envs_jax
from benchmarks.peers import environments
from podracer import networks, parallel
from podracer.agents import ppo
from podracer.metrics import human

EPOCHS, MINIBATCHES = 4, 4
LAYERS = ((4, 64), (64, 64), (64, 2)), ((4, 64), (64, 64), (64, 1))  # actor, critic
SCRIPTS = Path(environments.__file__).parent
CALLS = 4  # of podracer, in a measurement: it reports to its user after each


class Who(NamedTuple):
    """An entrant, and its number of virtual CPU devices."""

    name: str
    cores: int


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    settings: tuple[str, ...] = ("2048x32", "2048x128", "64x128")
    """batch size x unroll length"""
    who: tuple[Literal["rejax", "brax", "podracer"], ...] = (
        "rejax",
        "brax",
        "podracer",
    )
    cores: tuple[int, ...] = tuple(sorted({1, os.cpu_count() or 1}))
    """numbers of virtual CPU devices for brax and podracer; rejax uses one"""
    repeats: int = 3
    steps: int = 2**21
    """environment steps of each measurement, a multiple of every setting's"""
    floor: bool = False
    """measure only the machine's limit"""
    floor_rows: tuple[int, ...] = ()
    """batch sizes of the floor's products; default: from 128 to 2,048"""
    floor_seconds: float = 0.2
    """seconds of each measurement of the limit"""
    timeout: float = 900.0
    """time limit of a measurement, in seconds"""
    here: tuple[int, int, int, int] | None = None
    """measure podracer in this process: environments, unroll, steps and cores"""


def podracer_speed(
    batch_size: int, unroll_length: int, steps: int, cores: int
) -> dict[str, float]:
    """Steps/s of `anakin.train` as its user sees it, after a first call."""
    parallel.use_cpu_cores(cores)
    env = envs_jax.make("cartpole")
    network = networks.actor_critic(
        env.observation_spec(),
        env.action_spec(),
        networks.Config(hidden_sizes=(64, 64), activation="tanh", separate_value=True),
    )
    updates_per_report = max(1, steps // (batch_size * unroll_length) // CALLS)
    first = updates_per_report * batch_size * unroll_length
    run = anakin.train(
        ppo.make_agent(ppo.Config(epochs=EPOCHS, minibatches=MINIBATCHES), network),
        env,
        batch_size=batch_size,
        unroll_length=unroll_length,
        total_steps=first + steps,
        updates_per_report=updates_per_report,
        cores=cores,
    )
    next(run)
    started = time.perf_counter()
    for _ in run:
        pass
    speed = steps / (time.perf_counter() - started)
    return {"steps_per_second": speed, "devices": cores}


def measure(config: Config, who: Who, setting: str) -> dict:
    """The last line, JSON, that a separate process prints. {} if it fails."""
    numbers = [*setting.split("x"), config.steps]
    if who.name == "limit":
        numbers = config.floor_seconds, *config.floor_rows
        command = [sys.executable, SCRIPTS / "floor.py", *map(str, numbers)]
    elif who.name == "podracer":
        command = [
            sys.executable,
            "-m",
            "benchmarks.ppo",
            "--here",
            *numbers,
            who.cores,
        ]
    else:
        python = environments.python_of(who.name)
        command = [python, SCRIPTS / f"{who.name}_cartpole.py", *numbers]
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(who.cores)}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=SCRIPTS.parents[1],
            env=environments.clean_environment(**settings),
            timeout=config.timeout,
            capture_output=True,
            text=True,
            check=True,
        )
    except subprocess.TimeoutExpired:
        print(f"{who}, {setting}: timed out after {config.timeout:.0f} s")
        return {}
    except subprocess.CalledProcessError as error:
        print(f"{who}, {setting}: failed\n{error.stderr[-2_000:]}")
        return {}
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["devices"] == who.cores, (who, result)
    return result


def limits(rates: dict[str, float]) -> dict[str, float]:
    """Steps/s that products at these FLOP/s allow, alone and with tanh.

    Each step takes one forward pass for acting, and a forward and a backward pass per
    epoch; the input of the first layer needs no gradient. Losses, shuffling and the
    environment are left out, and narrow layers count as fast as wide ones.
    """
    flops = {
        "forward": (1 + EPOCHS) * sum(_flops(net) for net in LAYERS),
        "input_gradient": EPOCHS * sum(_flops(net[1:]) for net in LAYERS),
        "weight_gradient": EPOCHS * sum(_flops(net) for net in LAYERS),
    }
    units = sum(outputs for net in LAYERS for _, outputs in net[:-1])
    seconds = sum(count / rates[name] for name, count in flops.items())
    tanh_seconds = (1 + EPOCHS) * units / rates["tanh"]
    return {"products": 1 / seconds, "limit": 1 / (seconds + tanh_seconds)}


def _flops(layers: tuple[tuple[int, int], ...]) -> int:
    """Of one row through these layers."""
    return sum(2 * inputs * outputs for inputs, outputs in layers)


def floor_table(results: dict[Who, list[dict]]) -> tuple[rich.table.Table, dict]:
    """The best rates of all repeats, and by cores the best limit of all rows."""
    names = ("forward", "input_gradient", "weight_gradient")
    turned = "weight_gradient_transposed"
    table = rich.table.Table(
        *("cores", "rows", "forward", "input gradient", "weight gradient"),
        *("the same, transposed", "tanh/s", "products", "limit"),
        title="GFLOP/s of products of 64 units; steps/s that they allow, and with tanh",
    )
    best = {}
    for who, runs in results.items():
        for rows in runs[0]["rates"]:
            tables = [run["rates"][rows] for run in runs]
            rates = {name: max(t[name] for t in tables) for name in tables[0]}
            row = [f"{rates[name] / 1e9:.0f}" for name in (*names, turned)]
            rates["weight_gradient"] = max(rates["weight_gradient"], rates.pop(turned))
            allowed = limits(rates)
            speeds = map(human, (rates["tanh"], *allowed.values()))
            table.add_row(str(who.cores), rows, *row, *speeds)
            best[who.cores] = max(best.get(who.cores, 0.0), allowed["limit"])
    return table, best


def speed_table(
    results: dict[tuple[str, Who], list[float]], best: dict
) -> rich.table.Table:
    """One row a setting and contestant."""
    table = rich.table.Table(
        *("B x T", "who", "cores", "steps/s", "lowest", "highest"),
        *("/ fastest peer", "/ limit"),
        title=f"PPO on CartPole, {EPOCHS} epochs x {MINIBATCHES} minibatches, steps/s",
    )
    for (setting, who), speeds in results.items():
        peers = [
            statistics.median(x)
            for (where, peer), x in results.items()
            if where == setting and peer.name != "podracer"
        ]
        median = statistics.median(speeds)
        table.add_row(
            *(setting, who.name, str(who.cores)),
            *map(human, (median, min(speeds), max(speeds))),
            f"{median / max(peers):.2f}" if peers else "",
            f"{median / best[who.cores]:.2f}" if who.cores in best else "",
        )
    return table


def main(config: Config) -> None:
    """Prints the tables. ValueError if the steps are not whole updates of a setting."""
    for setting in config.settings:
        batch_size, unroll_length = map(int, setting.split("x"))
        if config.steps % (batch_size * unroll_length):
            raise ValueError(f"{config.steps} steps are no whole updates of {setting}")
    console = rich.console.Console(width=110)
    load, *_ = (
        os.getloadavg()
    )  # of other processes: above 0.5 the figures are unreliable
    console.print(f"{os.cpu_count()} CPUs, load {load:.1f}, jax {jax.__version__}")
    floors = [(Who("limit", cores), "") for cores in config.cores]
    entrants = [
        Who(name, cores)
        for name in config.who
        if name == "podracer" or environments.is_available(name)
        for cores in (config.cores if name != "rejax" else (1,))
    ]
    turn = [(who, s) for s, who in itertools.product(config.settings, entrants)]
    turns = (floors if config.floor else floors + turn) * config.repeats
    for name in {who.name for who, _ in turns} & set(environments.PINS):
        environments.python_of(name)  # now, not after an hour
    limits_seen, speeds = {}, {}
    for who, setting in rich.progress.track(turns, "measuring", console=console):
        result = measure(config, who, setting)
        if "rates" in result:
            limits_seen.setdefault(who, []).append(result)
        elif result:
            speed = result["steps_per_second"]
            speeds.setdefault((setting, who), []).append(speed)
            console.print(f"{setting} {who.name} on {who.cores}: {human(speed)}")
    table, best = floor_table(limits_seen)
    console.print(table)
    if not config.floor:
        console.print(speed_table(speeds, best))


if __name__ == "__main__":
    config = tyro.cli(Config)
    if config.here:
        print(json.dumps(podracer_speed(*config.here)))
    else:
        main(config)
