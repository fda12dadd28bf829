"""Learning curves of all agents over several seeds.

    python -m benchmarks.learning [--only cartpole] [--seeds 3] [--out runs/learning]

Every run is a command, as a user would type it. Its result (`records.result`) is the mean return
of the episodes that finished in the last tenth of its steps, with the exploring policy. Runs that are
complete in the folder are not repeated, and one that was killed is resumed from its checkpoint:
interrupt it, and go on later, here or on another machine. Leaves learning.md, the tables of all
groups, and in learning/ for each group its records, a figure and a small one: in the folder of the
runs, or where `--report` says. To report again is to run it again.
"""

import dataclasses
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich.progress
import tyro

import anakin
import envs_jax
import podracer
import sebulba
from benchmarks import records
from benchmarks.experiments import TASKS, Task
from podracer import parallel
from podracer.errors import UserError
from podracer.files import atomic
from podracer.launch import restarts, steps
from podracer.runs import plot, run_folder

HOURS = 3.0  # time limit of a run; to start again resumes it


@dataclasses.dataclass(frozen=True)
class Config:
    """What to run."""

    only: tuple[str, ...] = ("cartpole", "pendulum", "cheetah")
    """groups of tasks to run"""
    seeds: int = 3
    """number of runs of each task, from seed 0"""
    out: Path = Path("runs/learning")
    """folder for the runs"""
    report: Path | None = None
    """folder for learning.md, records and figures; default: the runs' one"""
    train: bool = True
    """train what has not finished in `out`, rather than only report what has"""

    def __post_init__(self):
        groups = dict.fromkeys(task.group for task in TASKS)
        if unknown := {*self.only} - groups.keys():
            raise UserError(
                f"only is {', '.join(sorted(unknown))}; it must be of {', '.join(groups)}"
            )


def run(task: Task, config: Config) -> None:
    """Trains the seeds whose folders do not hold a finished run of this command."""
    places = folders(config, task)
    left = [seed for seed, place in enumerate(places) if not is_done(task, place)]
    if task.together and left:
        train(task, places[left[0] : left[-1] + 1], left[0])
    else:
        for seed in left:
            train(task, places[seed : seed + 1], seed)


def is_done(task: Task, folder: Path) -> bool:
    """Whether the task's command has finished there."""
    done = folder / records.DONE
    return done.exists() and json.loads(done.read_text())["command"] == task.command


def train(task: Task, places: Sequence[Path], seed: int) -> None:
    """One program for this seed and the next; notes in each place how it was made."""
    program = [sys.executable, "-m", *shlex.split(task.command), "--seed", str(seed)]
    program += ["--quiet", "--run"]
    if len(places) > 1:
        program += [str(places[0].parent), "--seeds", str(len(places))]
    else:
        program += [str(places[0])]
    new = made(task.command) | {"seconds": 0.0, "resumed": 0}
    line, how = again(program, places[0]) or ([*program, "--overwrite"], new)
    for place in places:
        (place / records.DONE).unlink(missing_ok=True)
    started = time.monotonic()
    places[0].parent.mkdir(parents=True, exist_ok=True)
    write(begun(places[0]), how | {"started": time.time()})
    call(line)
    how["seconds"] = round(how["seconds"] + time.monotonic() - started, 1)
    for place in places:
        write(place / records.DONE, how | {"runs": len(places)})


def call(line: Sequence[str]) -> None:
    """Runs a command to its end; stopped here, it is asked to write its checkpoint first.

    Raises CalledProcessError, and SystemExit after HOURS.
    """
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        try:
            code = process.wait(HOURS * 3600)
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"stopped after {HOURS:g} hours; start again to resume: {shlex.join(line)}"
            ) from None
        finally:
            steps.end([process])
    if code:
        raise subprocess.CalledProcessError(code, line)


def again(
    program: Sequence[str], place: Path
) -> tuple[Sequence[str], dict[str, Any]] | None:
    """The command that resumes a run of this program that was killed, and how it was made.

    None if it has no whole checkpoint, and for a peer's, which begins again.
    """
    note, rows = begun(place), place / run_folder.METRICS
    if "train" not in program or not (note.exists() and rows.exists()):
        return None
    line, _ = restarts.following(program)
    if "--resume" not in line:
        return None
    how = json.loads(note.read_text())
    ended = rows.stat().st_mtime  # all that is known of it
    how["seconds"] += ended - how.pop("started")
    how["resumed"] += 1
    if (here := commit()) not in how["commit"]:
        how["commit"] += f", {here}"
    return line, how


def begun(place: Path) -> Path:
    """The file that says how a run was begun: beside the folder that its command writes."""
    return place.with_name(f"{place.name}.json")


def write(path: Path, content: dict[str, Any]) -> None:
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content))


def made(command: str) -> dict[str, Any]:
    """What is on record about a command that starts now."""
    return {
        "command": command,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{parallel.processors()} {platform.machine()} processors",
        "load": round(os.getloadavg()[0], 1),  # of other programs, in processors
    }


def commit() -> str:
    """The last commit that changed the packages, with a + if their files differ from it.

    So it also names the code in branches that only add to benchmarks or docs.
    """
    packages = [
        str(Path(x.__file__).parent) for x in (anakin, envs_jax, podracer, sebulba)
    ]
    found = git("log", "-1", "--format=%h", "--", *packages)
    return f"{found or '?'}{'+' * bool(git('status', '--short', '--', *packages))}"


def git(*arguments: str) -> str:
    """What git prints; nothing if it fails."""
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        ).stdout.strip()
    except OSError:
        return ""


def folders(config: Config, task: Task) -> list[Path]:
    """The run folder of each seed."""
    name = f"{task.env}-{task.agent}".replace(", ", "-").replace(" ", "-").lower()
    base = config.out / task.group / name.replace(":", "-")
    return [base / f"seed-{n}" for n in range(config.seeds)]


def report(tasks: list[Task], config: Config) -> None:
    """Writes the records and picture of a group, as far as its tasks have finished here.

    The record of another task is kept if it is of the same command.
    """
    out = (config.report or config.out) / "learning"
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{tasks[0].group}.jsonl"
    before = {line["command"]: line for line in records.read(path)}
    for task in tasks:
        if all(is_done(task, place) for place in folders(config, task)):
            before[task.command] = records.record(task, folders(config, task))
    lines = [before[task.command] for task in tasks if task.command in before]
    records.write(lines, path)
    records.draw_small(path.stem, lines, out)
    print(tasks[0].group, *records.table(lines), sep="\n")
    if picture := records.picture(lines):
        plot.save(picture, path.with_suffix(".png"))
    records.draw_five(records.kept(out), out)
    with atomic(out.with_suffix(".md")) as page:
        page.write_text(records.page(out))


def main(config: Config) -> None:
    tasks = [task for task in TASKS if task.group in config.only]
    for task in rich.progress.track(tasks if config.train else [], "learning"):
        run(task, config)
    for group in config.only:
        report([task for task in tasks if task.group == group], config)


if __name__ == "__main__":
    main(tyro.cli(Config))
