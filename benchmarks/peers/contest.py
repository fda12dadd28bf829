"""The same work for several entrants in turn, each measurement in a process of its own."""

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import environments
from benchmarks.peers.work import Replayed, Work
from podracer import parallel
from podracer.errors import UserError

FOLDER = Path(__file__).parent
CPU = "cpu"
ANAKIN = ("cartpole", "minatar-breakout")
SEBULBA = ("CartPole-v1", "Pong-v5")  # EnvPool's
DEEP = "Pong-v5-resnet"
RECURRENT = "CartPole-v1-lstm"

PPO = 4, 4, [64, 64], "", 0
KINDS = {  # environment, epochs, minibatches, units, torso, memory, steps (to whole updates)
    "cartpole": ("cartpole", *PPO, 2**20),
    "minatar-breakout": ("minatar-breakout", *PPO, 2**20),
    "CartPole-v1": ("CartPole-v1", *PPO, 2**18),
    "Pong-v5": ("Pong-v5", 1, 1, [], "shallow", 0, 64 * 20 * 16),
    DEEP: ("Pong-v5", 1, 1, [], "resnet", 0, 64 * 20 * 4),
    RECURRENT: ("CartPole-v1", 4, 4, [], "", 64, 2**16),
}
# Algorithm, environment, updates per step, transitions of each, units, steps.
REPLAYED = {
    "pendulum-each-step": ("SAC", "pendulum", 1.0, 256, [256, 256], 2**10),
    "pendulum-parallel": ("SAC", "pendulum", 1 / 512, 4096, [256, 256], 2**14),
    "cartpole-each-step": ("DQN", "cartpole", 1.0, 64, [256, 256], 2**12),
    "cartpole-parallel": ("DQN", "cartpole", 1 / 512, 4096, [256, 256], 2**16),
}


class Entrant(NamedTuple):
    """A library and how it is measured."""

    name: str
    script: str  # in this folder; prints a line of JSON
    peer: str | None  # whose virtual environment runs it; None: ours, in this one
    kinds: tuple[str, ...]  # of work that it can do
    cores: tuple[int, ...]  # numbers of virtual CPU devices to try
    options: dict[str, Any] = {}  # noqa: RUF012 nobody changes it; arguments of the script


def _peer(
    package: str,
    script: str,
    can: tuple[str, ...],
    cores: list[int],
    peer: str | None = None,
    **options,
) -> Entrant:
    """From the environment of `peer`; default: of its own."""
    name = environments.title(peer or package, package)
    return Entrant(name, script, peer or package, can, tuple(cores), options)


ALL = parallel.processors()
DEVICES = (*sorted({1, ALL}),)
SAC, DQN = (
    tuple(kind for kind, (learns, *_) in REPLAYED.items() if learns == algorithm)
    for algorithm in ("SAC", "DQN")
)
OURS = "podracer"
SHUFFLED = f"{OURS}, shuffling transitions"
ENTRANTS = (
    Entrant(OURS, "ours.py", None, (*ANAKIN, *SEBULBA, DEEP, RECURRENT), (ALL,)),
    Entrant(
        *(SHUFFLED, "ours.py", None, (*ANAKIN, "CartPole-v1"), (ALL,)),
        {"shuffle": "transitions"},
    ),
    _peer("rejax", "rejax_ppo.py", ANAKIN, [1]),
    _peer("brax", "brax_ppo.py", ANAKIN, sorted({1, ALL})),
    _peer("jaxnasium", "jaxnasium_ppo.py", ANAKIN, [1]),
    _peer("sample-factory", "sample_factory_appo.py", (*SEBULBA, DEEP), [ALL]),
    _peer(
        *("stable-baselines3", "sb3_ppo.py", SEBULBA, [ALL], "sb3"),
        library="stable_baselines3",
    ),
    _peer("sbx-rl", "sb3_ppo.py", ("CartPole-v1",), [ALL], "sb3", library="sbx"),
    _peer(
        *("sb3-contrib", "sb3_ppo.py", (RECURRENT,), [ALL], "sb3"),
        library="sb3_contrib",
    ),
    Entrant(OURS, "ours_replayed.py", None, (*REPLAYED,), DEVICES),
    _peer("rejax", "rejax_replayed.py", (*REPLAYED,), [1]),
    _peer("brax", "brax_sac.py", SAC, [*DEVICES]),
    _peer("jaxnasium", "jaxnasium_dqn.py", DQN, [1]),
    _peer(
        *("stable-baselines3", "sb3_replayed.py", (*REPLAYED,), [ALL], "sb3"),
        library="stable_baselines3",
    ),
    _peer("sbx-rl", "sb3_replayed.py", (*REPLAYED,), [ALL], "sb3", library="sbx"),
)


class Turn(NamedTuple):
    """A measurement."""

    work: Work | Replayed
    entrant: Entrant
    cores: int

    def __str__(self) -> str:
        return f"{self.work.name} {self.entrant.name} on {self.cores}"


def parse(text: str, scale: float = 1.0) -> Work | Replayed:
    """KIND:BxT as work, of `scale` times its usual steps. Raises UserError."""
    try:
        kind, sizes = text.split(":")
        batch_size, unroll_length = map(int, sizes.split("x"))
        *rest, usual = (KINDS | REPLAYED)[kind]
    except (ValueError, KeyError):
        raise UserError(
            f"work is {text!r}; it takes KIND:BxT, B environments and unrolls of T steps, "
            f"such as cartpole:2048x32; kinds: {', '.join(KINDS | REPLAYED)}"
        ) from None
    update = batch_size * unroll_length
    steps = max(1, math.ceil(scale * usual / update)) * update
    if kind in KINDS:
        environment, *rest = rest
        return Work(kind, environment, batch_size, unroll_length, *rest, steps)
    algorithm, environment, rate, *rest = rest
    updates = round(rate * update)
    if not updates or updates != rate * update or updates % unroll_length:
        raise UserError(
            f"work is {text!r}, and {rate:g} updates for each of B x T steps are not a whole "
            "number after each of T steps: choose another B"
        )
    sizes = batch_size, unroll_length, updates
    return Replayed(kind, algorithm, environment, *sizes, *rest, steps)


def turns(
    works: list[Work | Replayed], entrants: list[Entrant], platform: str = CPU
) -> list[Turn]:
    """Of one round; on a GPU all use one. Devices without an environment are left out."""
    return [
        Turn(work, entrant, cores)
        for work, entrant in itertools.product(works, entrants)
        if work.kind in entrant.kinds
        for cores in (entrant.cores if platform == CPU else (1,))
        if cores <= max(work.batch_size, entrant.cores[0])
    ]


def measure(turn: Turn, seconds: float, platform: str = CPU) -> dict:
    """{"steps_per_second"} of a separate process, or {"failure"}, what went wrong."""
    entrant = turn.entrant
    work = turn.work._asdict() | entrant.options
    if entrant.peer is None:
        module = f"benchmarks.peers.{entrant.script.removesuffix('.py')}"
        command = [sys.executable, "-m", module]
        work["cores"] = turn.cores
    else:
        own = platform == CPU
        python = environments.python_of(entrant.peer) if own else sys.executable
        command = [python, FOLDER / entrant.script]
    return run([*command, json.dumps(work)], turn.cores, seconds, platform)


def run(command: list, cores: int, seconds: float, platform: str = CPU) -> dict:
    """The last line, JSON, that a process prints; {"failure"} if there is none in time."""
    if platform == CPU:
        settings = {"JAX_NUM_CPU_DEVICES": str(cores)}
    else:  # one GPU, the first that the user allows
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        settings = {"CUDA_VISIBLE_DEVICES": allowed.partition(",")[0]}
    settings["JAX_PLATFORMS"] = platform
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=FOLDER.parents[1],
        env=environments.clean_environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # with the processes that it starts
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failure": f"no result after {seconds:.0f} s"}
    finally:
        _end(process)
    if process.returncode:
        return {"failure": f"exit code {process.returncode}: {err[-2_000:]}"}
    lines = [line for line in out.splitlines() if line.startswith('{"')]
    if not lines:
        return {"failure": f"it printed no result: {err[-2_000:]}"}
    result = json.loads(lines[-1])
    assert result["devices"] == cores, (command, result)
    return result


def _end(process: subprocess.Popen) -> None:
    """Ends it, and the processes that it left."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.communicate()


def rounds(
    plan: list[Turn], number: int, seconds: float, platform: str = CPU
) -> Iterator[tuple[Turn, float, dict]]:
    """Each turn of each round: the turn, the load before it, its result."""
    for _, turn in itertools.product(range(number), plan):
        load = os.getloadavg()[0]
        yield turn, load, measure(turn, seconds, platform)
