"""Seconds from the command to a score, beside other libraries: start and compilation included.

    python -m benchmarks.time_to_score [--tasks cartpole pendulum breakout cheetah] [--seeds 3]

Entrants take turns, each run in a process of its own that ends once the score is reached: the
mean return of the last 100 training episodes, or of rejax, which has none, of the 128 episodes
of an evaluation. We train with our presets; stable-baselines3 and sbx with the settings that
RL Baselines3 Zoo has for the task, without its schedules; rejax with the settings of its
repository for the task, but for CartPole its defaults. Our cache of compiled programs is off.
Peers run in environments of their own (`benchmarks.peers`). Leaves time-to-score.json and
time-to-score.md in `--report`, after each seed anew.
"""

import dataclasses
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import rich.progress
import tyro

from benchmarks.learning import commit
from benchmarks.peers import environments
from podracer import metrics, parallel
from podracer.errors import UserError
from podracer.files import atomic
from podracer.runs import run_folder

FOLDER = Path(__file__).parent / "peers"


class Task(NamedTuple):
    """A score of an environment, and what trains to it: our commands and peers' settings."""

    title: str
    score: float
    ours: dict[str, str]
    peers: dict[str, dict[str, Any]]  # by package, or "package, agent"
    total_steps: int  # limit of each run
    seconds: float = 900.0  # the same


ZOO_PPO = {  # rl-baselines3-zoo, hyperparams/ppo.yml, CartPole-v1
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "learning_rate": 1e-3,
}
CARTPOLE = {
    "algorithm": "PPO",
    "env": "CartPole-v1",
    "environments": 8,
    "arguments": ZOO_PPO,
}
PENDULUM = {  # hyperparams/sac.yml, Pendulum-v1
    "algorithm": "SAC",
    "env": "Pendulum-v1",
    "environments": 1,
    "arguments": {"learning_rate": 1e-3},
}
PENDULUM_PPO = {  # hyperparams/ppo.yml, Pendulum-v1
    "algorithm": "PPO",
    "env": "Pendulum-v1",
    "environments": 4,
    "arguments": {
        "n_steps": 1_024,
        "gamma": 0.9,
        "learning_rate": 1e-3,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
}
CHEETAH = {  # hyperparams/sac.yml, HalfCheetah
    "algorithm": "SAC",
    "env": "HalfCheetah-v4",
    "envpool": True,
    "environments": 1,
    "arguments": {"learning_starts": 10_000},
}
TASKS = {
    "cartpole": Task(
        "CartPole 475",
        475,
        {
            "podracer, Anakin": "anakin train --agent ppo --preset cartpole --env cartpole",
            "podracer, Sebulba": "sebulba train --agent ppo --preset cartpole --env "
            "CartPole-v1",
        },
        {
            "rejax": {
                "algorithm": "PPO",
                "env": "CartPole-v1",
                "arguments": {"eval_freq": 16_384},
            },
            "stable-baselines3": CARTPOLE,
            "sbx-rl": CARTPOLE,
        },
        1_000_000,
    ),
    "pendulum": Task(
        "Pendulum -200",
        -200,
        {
            "podracer, PPO": "anakin train --agent ppo --preset continuous --env pendulum",
            "podracer, SAC": "anakin train --agent sac --preset pendulum --env pendulum",
        },
        {
            "rejax, PPO": {  # configs/gymnax/pendulum.yaml
                "algorithm": "PPO",
                "env": "Pendulum-v1",
                "arguments": {
                    "agent_kwargs": {"activation": "swish"},
                    "num_envs": 100,
                    "num_steps": 100,
                    "num_epochs": 10,
                    "num_minibatches": 10,
                    "learning_rate": 1e-3,
                    "max_grad_norm": 10,
                    "gamma": 0.995,
                    "ent_coef": 0.0,
                    "normalize_observations": True,
                    "eval_freq": 10_000,
                },
            },
            "rejax, SAC": {
                "algorithm": "SAC",
                "env": "Pendulum-v1",
                "arguments": {
                    "agent_kwargs": {"activation": "swish"},
                    "buffer_size": 10_000,
                    "fill_buffer": 256,
                    "learning_rate": 0.01,
                    "polyak": 0.98,
                    "normalize_observations": True,
                    "eval_freq": 1_024,
                },
            },
            "stable-baselines3, PPO": PENDULUM_PPO,
            "stable-baselines3, SAC": PENDULUM,
            "sbx-rl, SAC": PENDULUM,
        },
        1_000_000,
    ),
    "breakout": Task(
        "Breakout (MinAtar) 10",
        10,
        {
            "podracer, PPO": "anakin train --agent ppo --preset minatar --env "
            "minatar-breakout",
            "podracer, PQN": "anakin train --agent pqn --preset minatar --env "
            "minatar-breakout",
        },
        {
            "rejax": {  # benchmark/breakout_1m.yaml
                "algorithm": "PPO",
                "env": "Breakout-MinAtar",
                "arguments": {
                    "agent_kwargs": {"activation": "tanh"},
                    "num_envs": 32,
                    "num_steps": 32,
                    "num_epochs": 4,
                    "num_minibatches": 4,
                    "learning_rate": 2.567e-4,
                    "max_grad_norm": 1,
                    "gamma": 0.995,
                    "eval_freq": 131_072,
                },
            },
        },
        10_000_000,
    ),
    "cheetah": Task(
        "HalfCheetah 2,000",
        2_000,
        {
            "podracer, PPO": "sebulba train --agent ppo --preset mujoco --env "
            "HalfCheetah-v4",
            "podracer, SAC": "sebulba train --agent sac --preset mujoco --env "
            "HalfCheetah-v4",
        },
        {"stable-baselines3, SAC": CHEETAH, "sbx-rl, SAC": CHEETAH},
        1_000_000,
        1_800.0,  # 100 episodes are 100,000 steps
    ),
    "smoke": Task(  # of seconds, for the tests
        "Catch -1",
        -1,
        {
            "podracer": "anakin train --preset small --env catch --batch-size 8"
            " --network.hidden-sizes 8"
        },
        {},
        2_000,
    ),
}
VENVS = {"rejax": "rejax", "stable-baselines3": "sb3", "sbx-rl": "sb3"}
LIBRARIES = {"stable-baselines3": "stable_baselines3", "sbx-rl": "sbx"}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    tasks: tuple[str, ...] = ("cartpole", "pendulum", "breakout", "cheetah")
    """scores to reach"""
    seeds: int = 3
    """number of runs of each, from seed 0"""
    report: Path = Path("runs")
    """folder of the results; those of other tasks there stay"""

    def __post_init__(self):
        if unknown := {*self.tasks} - TASKS.keys():
            raise UserError(
                f"tasks has {', '.join(sorted(unknown))}; it must be of {', '.join(TASKS)}"
            )


def ours(task: Task, command: str, seed: int) -> dict[str, Any]:
    """Seconds of our command, and whether it reached the score."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        line = [sys.executable, "-m", *shlex.split(command), "--seed", str(seed)]
        line += ["--total-steps", str(task.total_steps), "--stop-at", f"{task.score}"]
        line += ["--run", str(folder), "--quiet"]
        settings = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        here = str(Path(__file__).parents[1])
        settings |= {"PYTHONPATH": here}
        result, _ = timed(line, settings, task.seconds)
        rows = [*metrics.read(folder / run_folder.METRICS)]
        reached = metrics.Recent(rows).has_reached(task.score)
        return result | {"reached": reached, "steps": rows[-1]["steps"] if rows else 0}


def peers(task: Task, name: str, seed: int) -> dict[str, Any]:
    """The same of a peer's script."""
    package = package_of(name)
    settings = task.peers[name] | {
        "library": LIBRARIES.get(package),
        "score": task.score,
        "total_steps": task.total_steps,
        "seed": seed,
    }
    script = "rejax_to_score.py" if package == "rejax" else "sb3_to_score.py"
    python = environments.python_of(VENVS[package])
    line = [str(python), str(FOLDER / script), json.dumps(settings)]
    result, out = timed(line, {"JAX_PLATFORMS": "cpu"}, task.seconds)
    found = [json.loads(x) for x in out.splitlines() if x.startswith('{"reached')]
    return result | (found[-1] if found else {"reached": False, "steps": 0})


def package_of(peer: str) -> str:
    """Of an entrant, which may also name the agent."""
    return peer.partition(",")[0]


def timed(
    line: list[str], settings: dict[str, str], limit: float
) -> tuple[dict[str, Any], str]:
    """Seconds and load of a process, with what it printed; ends it after `limit` seconds."""
    load, started = os.getloadavg()[0], time.monotonic()
    try:
        done = subprocess.run(
            line,
            env=environments.clean_environment(**settings),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"seconds": limit, "load": load}, ""
    if done.returncode:
        raise RuntimeError(f"{shlex.join(line)}\n{done.stderr[-2_000:]}")
    return {"seconds": time.monotonic() - started, "load": load}, done.stdout


def measure(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """A task's record after each seed: each entrant's runs, which took turns."""
    task = TASKS[name]
    entrants = {who: (ours, command) for who, command in task.ours.items()}
    for peer in task.peers:
        package = package_of(peer)
        if environments.is_available(VENVS[package]):
            who = environments.title(VENVS[package], package)
            entrants[who + peer.removeprefix(package)] = (peers, peer)
    record: dict[str, Any] = {
        "runs": {who: [] for who in entrants},
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{parallel.processors()} {platform.machine()} processors, "
        f"jax {jax.__version__}",
    }
    turns = [(seed, who) for seed in range(seeds) for who in entrants]
    for seed, who in rich.progress.track(turns, description=name):
        run, what = entrants[who]
        record["runs"][who].append(run(task, what, seed))
        if who == [*entrants][-1]:
            yield record


def page(records: dict[str, Any]) -> str:
    """time-to-score.md of the records of tasks."""
    lines = [
        "# Time to a score",
        "",
        "`python -m benchmarks.time_to_score --report docs/results` measures this and writes",
        "this page: seconds from the command until it ends, which is once the mean return of the",
        "last 100 training episodes is the score (rejax: of the 128 episodes of an evaluation).",
        "Start and compilation are included; our cache of compiled programs is off. Entrants",
        "took turns. We train with our presets; stable-baselines3 and sbx with the settings of",
        "RL Baselines3 Zoo, without its schedules; rejax with those of its repository, but for",
        "CartPole its defaults. A dash: not reached within the limits of seconds and steps.",
        "",
        "The mean of 100 training episodes lags behind the policy, most where there are few",
        "environments: with one, 100 episodes of Pendulum are 20,000 steps. An evaluation does not.",
    ]
    for name, record in records.items():
        task = TASKS[name]
        lines += ["", f"## {task.title}", ""]
        lines += [
            f"{record['machine']}, {record['date']}, commit {record['commit']}:",
            "",
            "| | seconds, each seed | median | environment steps | load |",
            "|---|---|---|---|---|",
        ]
        lines += [row(who, runs) for who, runs in record["runs"].items()]
        lines += ["", *(f"- {who}: `{line}`" for who, line in task.ours.items())]
        lines += ["", record["note"]] if "note" in record else []  # on how it was made
    return "\n".join([*lines, ""])


def row(who: str, runs: list[dict[str, Any]]) -> str:
    """A line of a task's table; a run that did not reach the score has a dash."""
    cells = (
        who,
        ", ".join(median([x]) for x in runs),
        median(runs),
        ", ".join(metrics.human(x["steps"]) for x in runs),
        f"{max(x['load'] for x in runs):.1f}",
    )
    return f"| {' | '.join(cells)} |"


def median(runs: list[dict[str, Any]]) -> str:
    """Of seconds, the slower of two in the middle; a dash if that did not reach the score."""
    order = sorted(runs, key=lambda x: (not x["reached"], x["seconds"]))
    middle = order[len(order) // 2]
    return f"{middle['seconds']:.1f}" if middle["reached"] else "-"


def main() -> None:
    config = tyro.cli(Config, description=__doc__)
    config.report.mkdir(parents=True, exist_ok=True)
    kept = config.report / "time-to-score.json"
    records = json.loads(kept.read_text()) if kept.exists() else {}
    results = ((x, record) for x in config.tasks for record in measure(x, config.seeds))
    for name, record in results:
        records[name] = record
        for path, text in (
            (kept, json.dumps(records, indent=1) + "\n"),
            (config.report / "time-to-score.md", page(records)),
        ):
            with atomic(path) as temporary:
                temporary.write_text(text)
    print(page(records))


if __name__ == "__main__":
    main()
