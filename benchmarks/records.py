"""What `benchmarks.learning` has measured, as text: docs/results/learning/GROUP.jsonl.

A line is a task: its command and configuration, and of each seed the return, seconds, commit,
date and machine. All tables are made from these records, never typed.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments import Task
from podracer import metrics
from podracer.files import atomic
from podracer.metrics import human
from podracer.runs import plot, run_folder
from podracer.runs.evaluation import interval

KEPT = Path(__file__).parents[1] / "docs" / "results" / "learning"
DONE = "done.json"  # in a run's folder: how it was made
LIBRARIES = "jax", "stable-baselines3"  # whose versions are on record

HEAD = """# What agents learn

`python -m benchmarks.learning --only GROUP... --report docs/results` trains the groups of
benchmarks/experiments.py and writes this page. The records behind it, with every
configuration, are in `docs/results/learning/`. *Mean* is the mean return, with the exploring
policy, of the episodes that finished in the last tenth of a run. *Seconds* is the time of a whole
command, for all seeds if one program trains them together (built-in). *Load* is the load average
when the command started; seconds are meaningful only if it is near 0.
"""
COLUMNS = ("environment", "agent", "steps", "target", "mean", "95 % interval", "IQM")
COLUMNS += ("seeds", "seconds", "load", "commit")


def result(rows: Sequence[dict[str, Any]]) -> float:
    """The mean return of episodes that finished in the last tenth of a `metrics.jsonl`.

    NaN if none did.
    """
    last = [row for row in rows if row["steps"] > 0.9 * rows[-1]["steps"]]
    last = [row for row in last if row["episodes"]]
    total = sum(row["episodes"] * row["episode_return"] for row in last)
    return total / sum(row["episodes"] for row in last) if last else math.nan


def record(task: Task, folders: Sequence[Path]) -> dict[str, Any]:
    """The line of a task whose seeds, from 0, have been trained into these folders."""
    runs, config = [], {}
    for seed, folder in enumerate(folders):
        rows = [*metrics.read(folder / run_folder.METRICS)]
        made = json.loads((folder / DONE).read_text())
        written = json.loads((folder / run_folder.CONFIG).read_text())
        made |= {"seed": seed, "return": result(rows), "steps": int(rows[-1]["steps"])}
        made |= {
            x: written["versions"][x] for x in LIBRARIES if x in written["versions"]
        }
        runs.append({key: made[key] for key in made.keys() - {"command"}})
        config = config or written["config"]["train"]
    for name in "keep", "seed":  # all that differs between the seeds
        config.pop(name, None)
    return {
        "env": task.env,
        "agent": task.agent,
        "command": task.command,
        "target": None if math.isnan(task.target) else task.target,
        "runs": [dict(sorted(run.items())) for run in runs],
        "config": config,
    }


def write(records: Sequence[dict[str, Any]], path: Path) -> None:
    """One line each."""
    with atomic(path) as temporary:
        temporary.write_text("".join(f"{json.dumps(line)}\n" for line in records))


def read(path: Path) -> list[dict[str, Any]]:
    """The tasks of a group; none if it has not been measured."""
    return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []


def returns(line: dict[str, Any]) -> np.ndarray:
    """The return of each seed."""
    return np.array([run["return"] for run in line["runs"]])


def seconds(line: dict[str, Any]) -> float:
    """The median of a run."""
    return float(np.median([run["seconds"] for run in line["runs"]]))


def page(folder: Path = KEPT) -> str:
    """docs/results/learning.md: the table of each group, its picture and its commands."""
    parts = [HEAD]
    for path in sorted(folder.glob("*.jsonl")):
        parts += [f"## {path.stem}\n", "\n".join(table(read(path))) + "\n"]
        if path.with_suffix(".png").exists():
            picture = f"{folder.name}/{path.stem}.png"
            parts.append(f"![returns of {path.stem} by steps]({picture})\n")
    return "\n".join(parts)


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: versions, a row for each task, then the commands."""
    runs = [run for line in records for run in line["runs"]]
    made = {
        (run["date"], run["machine"], *(f"{x} {run[x]}" for x in LIBRARIES if x in run))
        for run in runs
    }
    yield "; ".join(", ".join(one) for one in sorted(made)) + ":"
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for line in records:
        found, runs = returns(line), line["runs"]
        spread = len(found) > 1 and np.isfinite(found).all()
        low, high = interval(found[:, None]) if spread else ([], [])
        target = math.nan if line["target"] is None else line["target"]
        cells = [
            line["env"],
            line["agent"],
            human(runs[0]["steps"]),
            human(target),
            human(found.mean()),
            *(f"{human(x)} to {human(y)}" for x, y in zip(low, high, strict=True)),
            *([""] * (not spread)),
            human(plot.iqm(found)),
            ", ".join(map(human, found)),
            human(seconds(line)),
            human(max(run["load"] for run in runs)),
            ", ".join(sorted({run["commit"] for run in runs})),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for line in records:
        yield f"- {line['env']}, {line['agent']}: `{line['command']}`"
