"""Populations that adapt, beside random search and the tuned preset, at equal steps.

    python -m benchmarks.population [--only cartpole] [--seeds 5] [--report docs/results]

Every run is a command, as a user would type it. A population and its control start with the
same hyperparameters; the preset trains as many runs, with seeds of their own. Two results, each
over several seeds of the whole population: the mean return of all members in the last
twentieth of their steps, which is within a population's last interval; and the mean return over
fresh episodes, by `anakin evaluate`, of the member that one would choose by its training. Runs
that are complete in the folder are not repeated: interrupt it, and go on later. Leaves
population.json, population.md and a figure of each task.
"""

import dataclasses
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import rich.progress
import tyro

from benchmarks import records
from benchmarks.learning import made
from podracer import metrics
from podracer.errors import UserError
from podracer.files import atomic
from podracer.metrics import human, json_number
from podracer.runs import lineage, plot, run_folder
from podracer.runs.evaluation import interval
from podracer.runs.listing import to_points

HOURS = 1.0  # time limit of a command
LAST = (
    0.05  # share of the steps that count; a population adapts 20 times, or less often
)
FRESH = 10_000  # seeds of evaluations from here on, which no run has
HEAD = """# Populations that adapt

`python -m benchmarks.population --report docs/results` makes this page. A population starts
with hyperparameters drawn from ranges of several orders of magnitude, most of which are bad.
*Random search* is the same population without exploitation: the same first hyperparameters and
the same steps. *Tuned preset* is the same number of runs with the preset's own hyperparameters;
the cost of finding these is not counted.

*All members*: the mean return of all members' finished episodes in the last twentieth of their
steps, with the exploring policy; members that failed (a metric was not finite) are left out and
counted. *Chosen*: the member that one would choose, which has the highest mean return at the
end of training, evaluated greedily on fresh episodes. Figures are means over the seeds, each a
whole population, with 95 % bootstrap intervals. The last line of a table is the difference between a population
and its control, seed by seed. Seconds are those of one command, with compilation; `load` is the
highest load average when one started.
"""


class Task(NamedTuple):
    """What is learned."""

    flags: str  # of environment and preset
    fields: str  # ranges of the hyperparameters
    total_steps: int  # of each member


WIDE = "learning-rate=1e-6..1e-1 entropy-cost=1e-4..1"
TASKS = {
    "cartpole": Task("--env cartpole --preset cartpole", WIDE, 500_000),
    # Its preset without the convolution, which costs eight members ten times as much.
    "breakout": Task(
        "--env minatar-breakout --preset minatar --network.torso mlp", WIDE, 1_000_000
    ),
    "pendulum": Task("--env pendulum --preset continuous", WIDE, 200_000),
    "smoke": Task(
        "--env catch --preset small --batch-size 8 --unroll-length 4 "
        "--network.hidden-sizes 4",
        WIDE,
        640,
    ),
}
OURS, CONTROL, PRESET = METHODS = "population", "random search", "tuned preset"


@dataclasses.dataclass(frozen=True)
class Config:
    """What to run."""

    only: tuple[str, ...] = ("cartpole", "breakout", "pendulum")
    """tasks"""
    seeds: int = 5
    """number of populations of each method"""
    members: int = 8
    """of each population"""
    episodes: int = 100
    """fresh episodes to evaluate a chosen member"""
    out: Path = Path("runs/population")
    """folder for the runs"""
    report: Path | None = None
    """folder for record, page and figures; default: the runs' one"""
    train: bool = True
    """train what has not finished in `out`, rather than only report what has"""

    def __post_init__(self):
        if unknown := {*self.only} - TASKS.keys():
            raise UserError(
                f"only is {', '.join(sorted(unknown))}; it must be of {', '.join(TASKS)}"
            )


def command(name: str, method: str, config: Config) -> str:
    """Without seed and folder."""
    task = TASKS[name]
    line = f"anakin train --agent ppo {task.flags} --total-steps {task.total_steps}"
    if method == PRESET:
        return f"{line} --seeds {config.members}"
    line += f" --population {config.members} --pbt.fields {task.fields}"
    return line + " --pbt.no-exploit" * (method == CONTROL)


def place(name: str, method: str, seed: int, config: Config) -> Path:
    """Where a population lies."""
    return config.out / name / method.replace(" ", "-") / f"seed-{seed}"


def is_done(name: str, method: str, seed: int, config: Config) -> bool:
    """Whether the command has finished there, and its choice is evaluated."""
    done = place(name, method, seed, config) / records.DONE
    if not done.exists():
        return False
    return json.loads(done.read_text())["command"] == command(name, method, config)


def run(name: str, method: str, seed: int, config: Config) -> None:
    """Trains a population, evaluates its choice, and notes how both were made."""
    folder = place(name, method, seed, config)
    line = command(name, method, config)
    (folder / records.DONE).unlink(missing_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    how = made(line) | {"seed": seed, "jax": jax.__version__}
    started = time.monotonic()
    first = str(seed * config.members)  # each member's is its own
    whole = f"{line} --seed {first} --overwrite --quiet --run {folder}"
    # One whose members failed has an exit code; `outcome` sees whether all else is whole.
    subprocess.run(_process(whole), check=False, timeout=HOURS * 3600)
    how["seconds"] = round(time.monotonic() - started, 1)
    how |= outcome(folder, method, TASKS[name].total_steps)
    if how["chosen"] is not None:
        own = folder / how["chosen"]
        whole = (
            f"anakin evaluate {own} --episodes {config.episodes} --seed {FRESH + seed}"
        )
        subprocess.run(_process(whole), check=True, timeout=HOURS * 3600)
        how["evaluated"] = json.loads((own / run_folder.EVALUATION).read_text())[
            "episode_return"
        ]
    with atomic(folder / records.DONE) as path:
        path.write_text(json.dumps(how))


def _process(line: str) -> list[str]:
    """The command by this interpreter."""
    return [sys.executable, "-m", *shlex.split(line)]


def outcome(folder: Path, method: str, total_steps: int) -> dict[str, Any]:
    """Returns of the members at the end, None of those that failed, and which is chosen."""
    states = {x: run_folder.load_state(x).get("state") for x in members(folder)}
    if unfinished := [
        str(x) for x in states if states[x] not in ("finished", "failed")
    ]:
        raise UserError(f"{', '.join(unfinished)}: not trained to the end")
    returns = {}
    for own, state in states.items():
        rows = [*metrics.read(own / run_folder.METRICS)]
        last = [row for row in rows if row["steps"] > (1 - LAST) * total_steps]
        score = lineage.score(last) if state == "finished" else None
        returns[own.name] = None if score is None else json_number(score)
    known = {own: x for own, x in returns.items() if x is not None}
    found = {"returns": returns, "chosen": max(known, key=known.get, default=None)}
    if method == PRESET:
        return found
    history = lineage.read(folder)
    best, found["taken_over"] = lineage.chosen(history), lineage.takeovers(history)
    if best is None:
        return found
    final = lineage.of_member(history, best)[-1].hyperparameters
    return found | {"chosen": history.folders[best].name, "hyperparameters": final}


def members(folder: Path) -> list[Path]:
    """The run folders of a population, or of several seeds."""
    return sorted(x.parent for x in folder.glob(f"*/{run_folder.CONFIG}"))


def record(name: str, config: Config) -> dict[str, Any]:
    """What a task has shown, once all its populations have finished."""
    return {
        method: [
            json.loads((place(name, method, x, config) / records.DONE).read_text())
            for x in range(config.seeds)
        ]
        for method in METHODS
    }


def of_all(one: dict[str, Any]) -> float:
    """The mean over the members of a population that did not fail; NaN where all did."""
    known = [x for x in one["returns"].values() if x is not None]
    return float(np.mean(known)) if known else np.nan


def of_chosen(one: dict[str, Any]) -> float:
    """The mean return of the chosen member over fresh episodes; NaN where there is none."""
    value = one.get("evaluated")
    return np.nan if value is None else value


def spread(values: Sequence[float]) -> str:
    """A mean and its interval."""
    mean = human(float(np.mean(values)))
    if len(values) < 2 or not np.isfinite(values).all():
        return mean
    low, high = interval(np.array(values)[:, None])
    return f"{mean} ({human(low[0])} to {human(high[0])})"


def page(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown, from the tasks' records."""
    yield HEAD
    for name, of_task in found.items():
        yield from section(name, of_task)


def section(name: str, of_task: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A task's results."""
    ours, control = of_task[OURS], of_task[CONTROL]
    first = ours[0]
    yield f"## {name}"
    yield ""
    yield (
        f"{first['date']}, {first['machine']}, jax {first['jax']}; {len(ours)} seeds of "
        f"{len(first['returns'])} members:"
    )
    yield ""
    yield "| | all members | chosen | of each seed | failed | seconds | load | commit |"
    yield "|---|---|---|---|---|---|---|---|"
    for method, runs in of_task.items():
        failed = sum(x is None for one in runs for x in one["returns"].values())
        cells = [
            method,
            spread([*map(of_all, runs)]),
            spread([*map(of_chosen, runs)]),
            ", ".join(human(of_chosen(x)) for x in runs),
            str(failed),
            human(float(np.median([x["seconds"] for x in runs]))),
            human(max(x["load"] for x in runs)),
            ", ".join(sorted({x["commit"] for x in runs})),
        ]
        yield f"| {' | '.join(cells)} |"
    gains = [
        spread([of(a) - of(b) for a, b in zip(ours, control, strict=True)])
        for of in (of_all, of_chosen)
    ]
    yield f"| {OURS} - {CONTROL} | {' | '.join(gains)} | | | | | |"
    yield ""
    yield "Hyperparameters of the chosen at the end:"
    yield ""
    for method in (OURS, CONTROL):
        yield f"- {method}: {'; '.join(map(_written, of_task[method]))}"
    yield ""
    for method, runs in of_task.items():
        yield f"- {method}: `{runs[0]['command']}`"
    yield ""
    yield f"![mean return of all members by steps]({picture_name(name)})"
    yield ""


def _written(one: dict[str, Any]) -> str:
    final = one.get("hyperparameters", {})
    return ", ".join(f"{x} {final[x]:.2g}" for x in sorted(final)) or "none"


def picture_name(name: str) -> str:
    """The file's name."""
    return f"population-{name}.png"


def picture(
    name: str, config: Config, of_task: dict[str, list[dict[str, Any]]]
) -> plot.Picture:
    """The curve of each method: of a population, the mean of its members; its number is that
    of the record."""
    return plot.compare(
        {
            method: [curve(place(name, method, x, config)) for x in range(config.seeds)]
            for method in METHODS
        },
        ends={x: float(np.mean([*map(of_all, runs)])) for x, runs in of_task.items()},
    )


def curve(folder: Path) -> np.ndarray:
    """The mean curve of the members that did not fail, for `plot.compare`."""
    every = []
    for own in members(folder):
        points = to_points(
            metrics.read(own / run_folder.METRICS), "steps", "episode_return"
        )
        if run_folder.load_state(own).get("state") == "finished" and len(points):
            every.append(points)
    if not every:
        return np.empty((0, 3))
    steps, values = plot.on_one_axis(every)
    return np.stack([steps, values.mean(0), np.ones_like(steps)], axis=1)


def report(config: Config) -> None:
    """Writes record, page and figures of the tasks that have finished here, and keeps those
    of the others."""
    out = config.report or config.out
    out.mkdir(parents=True, exist_ok=True)
    file = out / "population.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for name in config.only:
        done = [
            is_done(name, method, seed, config)
            for method in METHODS
            for seed in range(config.seeds)
        ]
        if all(done):
            found[name] = record(name, config)
            plot.save(picture(name, config, found[name]), out / picture_name(name))
        else:
            print(f"{name}: {sum(done)} of {len(done)} populations have finished")
    with atomic(file) as path:
        path.write_text(json.dumps(found, indent=1))
    lines = "\n".join(page(found))
    with atomic(file.with_suffix(".md")) as path:
        path.write_text(lines)
    print(lines)


def main(config: Config) -> None:
    left = [
        (name, method, seed)
        for seed in range(config.seeds)  # all methods under the same load
        for name in config.only
        for method in METHODS
        if config.train and not is_done(name, method, seed, config)
    ]
    for one in rich.progress.track(left, "population"):
        run(*one, config)
    report(config)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
