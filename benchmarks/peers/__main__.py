"""podracer's speed beside that of every peer on PyPI, on the same work.

    python -m benchmarks.peers [--works cartpole:2048x32 Pong-v5:64x20 ...] [--rounds 3]
    python -m benchmarks.peers --short
    python -m benchmarks.peers --works pendulum-each-step:1x8 pendulum-parallel:1024x8
    python -m benchmarks.peers --works cartpole-each-step:1x8 CartPole-v1-lstm:64x128
    python -m benchmarks.peers --platform cuda --works cartpole:2048x32 --scale 60

Entrants take turns, each measurement in a process and each peer in a virtual environment
of its own, made on first use. Leaves peers.json, peers.md and peers.png in `--out`.

Work is the same: the algorithm, the network's layers, batch, epochs, minibatches and
steps; no evaluation, no normalization of observations; the time to compile is left out.

- Anakin: PPO with 4 epochs of 4 minibatches, and separate actor and critic of 2 x 64 tanh
  units; images of MinAtar are flattened. Others shuffle single transitions, we by default
  whole unrolls: `podracer, shuffling transitions` does as they do.
- Sebulba: EnvPool's CartPole with the same PPO, and EnvPool's Pong with DQN's network and
  one pass over each batch: our IMPALA, and PPO with one epoch of one minibatch in
  sample-factory and stable-baselines3. `Pong-v5-resnet` has IMPALA's deep network, which of
  the peers only sample-factory has. `CartPole-v1-lstm` has no layers but an LSTM of 64 units
  each for actor and critic: sb3-contrib's RecurrentPPO. Its minibatches have as many steps as
  ours, but cut sequences where one ends, and pad them.
- SAC on Pendulum: a policy and two critics of 2 x 256 ReLUs, replay of 131,072 transitions,
  and equal numbers of updates. `pendulum-each-step`: one of 256 transitions for each step,
  after T steps of B environments; `pendulum-parallel`: one of 4,096 for each 512 steps. rejax
  and brax update after every step. We keep and sample unrolls of T, the others single
  transitions. stable-baselines3 and sbx step EnvPool's Pendulum, the others one in JAX.
- DQN on CartPole: the same with one network of 2 x 256 ReLUs, neither double nor dueling.
  `cartpole-each-step` learns from 64 transitions for each step, `cartpole-parallel` from 4,096
  for each 512 steps.

What could not be made alike: podracer and sample-factory act while they learn, from two
batches of environments, the others from one in turn. jaxnasium predicts the value of each
observation twice. Optimizers differ (Adam or RMSProp), and so does what is reported: we
count episodes and average metrics. Each uses the machine as it can: rejax and jaxnasium
one device, brax one or all, podracer all.

On a GPU (`--platform cuda`) all use one, and peers are measured if they are installed where
podracer is, with the JAX that is there.

Left out: sbx in Pong, whose PPO has a convolutional network each for policy and value, twice
the work; brax in Sebulba, which has no simulators on the host; Stoix, Mava and PureJaxRL,
which are not on PyPI; cleanrl, whose last release there is of 2023, scripts for older
libraries. Of recurrent PPOs in JAX there is one, ajax-rl's, which needs Python 3.12; rejax,
brax and jaxnasium have none.

The floor is what the matrix products and tanh of a work's agent alone would take, each as
fast as plain JAX computes it in cache (convolutions as products of 512 x 512). It calibrates
the machine: `--short` measures only us and compares our speeds over the floor with those of
an earlier record.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Literal

import rich.console
import rich.progress
import tyro

from benchmarks.peers import contest, environments, report
from podracer.command.ends import exits
from podracer.errors import UserError
from podracer.files import atomic
from podracer.metrics import human
from podracer.runs import plot

SHORT = ("cartpole:2048x32", "CartPole-v1:64x128")
LONG = (
    *("cartpole:2048x32", "cartpole:2048x128", "cartpole:64x128"),
    *("minatar-breakout:1024x64", "CartPole-v1:64x128", "Pong-v5:64x20"),
    "Pong-v5-resnet:64x20",
    "CartPole-v1-lstm:64x128",
    *("pendulum-each-step:1x8", "pendulum-each-step:8x8", "pendulum-parallel:1024x8"),
    *("cartpole-each-step:1x8", "cartpole-each-step:8x8", "cartpole-parallel:1024x8"),
)


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    works: tuple[str, ...] = ()
    """kinds of work, each with batch size x unroll length; default: our whole comparison"""
    who: tuple[str, ...] = ()
    """entrants whose names begin like this; default: all"""
    platform: Literal["cpu", "cuda"] = contest.CPU
    """where to run"""
    rounds: int = 3
    """measurements of each entrant"""
    scale: float = 1.0
    """factor on the steps of each measurement, which are rounded up to whole updates"""
    short: bool = False
    """measure only podracer, and compare it with `against`"""
    against: Path = Path("docs/results/peers-cpu.json")
    """an earlier record"""
    out: Path = Path("runs/peers")
    """folder for the results"""
    timeout: float = 600.0
    """time limit of a measurement, in seconds"""
    floor_seconds: float = 0.2
    """seconds of each measurement of the floor"""
    floor_rows: tuple[int, ...] = ()
    """batch sizes of the floor's products, of which those below 512 are not used for Pong;
    default: from 128 to 2,048"""


def installed(
    entrants: list[contest.Entrant], record: dict, platform: str
) -> list[contest.Entrant]:
    """Those that can be measured now; says in the record why others cannot."""
    reasons = {entrant.name: missing(entrant.peer, platform) for entrant in entrants}
    record["left_out"] |= {name: reason for name, reason in reasons.items() if reason}
    return [entrant for entrant in entrants if not reasons[entrant.name]]


def missing(peer: str | None, platform: str) -> str:
    """Why a peer cannot be measured; nothing if it can, installed now if need be."""
    if peer is None:
        return ""
    if platform != contest.CPU:
        here = environments.is_here(peer)
        return "" if here else "not installed where podracer is"
    try:
        if not environments.is_available(peer):
            return "not installed"
        environments.python_of(peer)
    except (RuntimeError, OSError) as error:
        return f"cannot be installed: {error}"
    return ""


def measure_floor(record: dict, config: Config, kinds: list[str]) -> None:
    """Once, on all cores, or one GPU."""
    cores = contest.ALL if config.platform == contest.CPU else 1
    numbers = config.floor_seconds, *config.floor_rows
    command = [sys.executable, contest.FOLDER / "floor.py", *numbers, *kinds]
    result = contest.run(command, cores, config.timeout, config.platform)
    if "failure" in result:
        last = result["failure"].strip().splitlines()[-1]
        raise UserError(
            f"platform is {config.platform!r}, and plain JAX fails on it: {last}; "
            f"JAX_PLATFORMS={config.platform} python benchmarks/peers/floor.py shows more"
        )
    if config.platform != contest.CPU:
        record["accelerator"] = result["kind"]
    for name, speed in result["steps_per_second"].items():
        record["floor"].setdefault(name, []).append(speed)


def measure(config: Config, console: rich.console.Console) -> dict:
    """The record, which is on disk after each measurement too."""
    texts = config.works or (SHORT if config.short else LONG)
    works = [contest.parse(text, config.scale) for text in texts]
    wanted = [
        entrant
        for entrant in contest.ENTRANTS
        if entrant.name.startswith(config.who or "")
        and (entrant.name == contest.OURS or not config.short)
        and contest.turns(works, [entrant])
    ]
    own = [x.peer for x in wanted if x.peer and config.platform == contest.CPU]
    record = report.begin(report.command(), own)
    entrants = installed(wanted, record, config.platform)
    plan = contest.turns(works, entrants, config.platform)
    if not plan:
        names = ", ".join(entrant.name for entrant in contest.ENTRANTS)
        raise UserError(
            f"who is {config.who}, and no such entrant that is installed can do the works: "
            f"choose from {names}"
        )
    total = len(plan) * config.rounds
    results = contest.rounds(plan, config.rounds, config.timeout, config.platform)
    for turn, load, result in rich.progress.track(
        results, "measuring", total, console=console
    ):
        if turn == plan[0]:  # a round begins
            measure_floor(record, config, [work.kind for work in works])
        report.add(record, turn, load, result)
        write(config.out / "peers.json", json.dumps(record, indent=1))
        speed = result.get("steps_per_second")
        console.print(f"{turn}: {human(speed) if speed else result['failure']}")
    return record


def write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text + "\n")


def main(config: Config) -> None:
    """Measures and prints the table."""
    console = rich.console.Console(width=110)
    config.out.mkdir(parents=True, exist_ok=True)
    record = measure(config, console)
    lines = [f"`{record['command']}`", "", report.machine(record), ""]
    lines += report.table(record)
    if config.short and config.against.exists():
        before = json.loads(config.against.read_text())
        lines += ["", *report.against(record, before)]
    write(config.out / "peers.md", "\n".join(lines))
    plot.save(report.picture(record), config.out / "peers.png")
    print("\n".join(lines))


if __name__ == "__main__":
    with exits("benchmarks.peers"):
        main(tyro.cli(Config))
