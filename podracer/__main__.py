"""The command for runs that exist: `podracer runs`, `podracer plot runs/*`."""

import contextlib
import dataclasses
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from podracer import command, launch
from podracer.errors import UserError, nearest
from podracer.metrics import VOCABULARY
from podracer.runs import lineage, listing, run_folder

FORMATS = (".png", ".svg")
HELP = ("-h", "--help")


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draws the learning curves of runs: the mean of each group, with its 95 % confidence
    interval (a bootstrap over the runs) where a group has two or more. Of a population's
    folder alone: its members, their hyperparameters, and the lineage of the best one."""

    folders: tyro.conf.Positional[tuple[Path, ...]] = ()
    """runs, or folders of runs"""
    by: tuple[str, ...] = ("agent", "env")
    """fields of the configuration that make the groups: agent, batch_size,
    agent.learning_rate, ..."""
    x: Literal["steps", "seconds"] = "steps"
    """horizontal axis: environment steps, or seconds of training without compilation"""
    y: str = "episode_return"
    """vertical axis: a metric; docs/metrics.md lists them"""
    statistic: Literal["mean", "iqm"] = "mean"
    """of a group's runs: their mean, or their interquartile mean (arXiv:2108.13264)"""
    profile: bool = False
    """draw performance profiles instead of curves: the share of a group's runs that end above
    each score"""
    out: Path = Path("curves.png")
    """the picture, a .png or .svg file; an existing one is replaced"""

    def __post_init__(self):
        if self.out.suffix not in FORMATS:
            raise UserError(f"--out is {self.out}; it must end in .png or .svg")
        if self.profile and (self.statistic, self.x) != ("mean", "steps"):
            raise UserError(
                "--profile draws all runs at their ends: leave out --statistic and --x"
            )


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compares runs: a table, the hyperparameters that differ, and one HTML page with the
    curves, videos, commands and versions. Runs that differ in the seed alone are one group."""

    folders: tyro.conf.Positional[tuple[Path, ...]] = ()
    """runs, or folders of runs"""
    html: Path = Path("comparison.html")
    """the page, which needs nothing beside it; an existing one is replaced"""

    def __post_init__(self):
        if self.html.suffix != ".html":
            raise UserError(f"--html is {self.html}; it must end in .html")


@dataclasses.dataclass(frozen=True)
class Runs:
    """Lists runs: the state of each, its newest metrics, and how long ago it began."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """a folder of runs, or a run"""


@dataclasses.dataclass(frozen=True)
class Export:
    """Writes the policy of a run: its parameters, or all that acting computes as a program
    for JAX alone (.stablehlo) or for any language (.onnx)."""

    run: tyro.conf.Positional[Path | None] = None
    """folder of the run"""
    out: tyro.conf.Positional[Path] = Path("policy.safetensors")
    """the file, .safetensors, .stablehlo or .onnx; an existing one is replaced"""
    sampled: bool = False
    """the program draws its actions, from a key that it takes; default: without exploration"""
    checkpoint: int | None = None
    """number of updates of the checkpoint; default: the newest"""
    trust: bool = False
    """import the code that a run folder names: agent and network"""


@dataclasses.dataclass(frozen=True)
class Hub:
    """Writes a folder in the format of Hugging Face's hub: a model card, the weights, the
    configuration, metrics and a video. Nothing is uploaded."""

    run: tyro.conf.Positional[Path | None] = None
    """folder of the run"""
    folder: tyro.conf.Positional[Path | None] = None
    """the new folder; `podracer.load` takes it for a run"""
    checkpoint: int | None = None
    """number of updates of the checkpoint; default: the newest"""
    trust: bool = False
    """import the code that a run folder names: agent and network"""


def hub(argv: Sequence[str]) -> None:
    """Write a folder for Hugging Face's hub: model card, weights, video."""
    config = command.parse(Hub(), argv, "podracer hub")
    if config.run is None or config.folder is None:
        raise UserError("which run, and where to? podracer hub RUN FOLDER")
    from podracer.trained import hub  # imports JAX

    written = hub.write(
        config.run, config.folder, config.checkpoint, trust=config.trust
    )
    print(f"{config.folder}: {', '.join(written)}")
    name = config.folder.absolute().name
    line = shlex.join(["hf", "upload", f"USER/{name}", str(config.folder), "."])
    print(f"to upload it, after you have read {hub.CARD}: {line}")


def export(argv: Sequence[str]) -> None:
    """Write the policy of a run as a file for other programs."""
    from podracer.trained import exporting  # imports JAX

    config = command.parse(Export(), argv, "podracer export")
    if config.run is None:
        raise UserError(
            f"which run? podracer export RUN FILE, which ends in "
            f"{', '.join(exporting.ENDINGS)}"
        )
    options = config.checkpoint, config.trust, config.sampled

    def make_environment(run: Any) -> Any | None:
        """That of anakin's runs, which is above this package; None: it cannot be made."""
        if run.program != "anakin":
            return None
        environments = importlib.import_module("anakin.command.environments")
        if environments.brings_code(run.env) and not config.trust:
            return None
        with contextlib.suppress(UserError):  # its library is not installed
            return environments.of_run(run)

    print(exporting.export(config.run, config.out, *options, make_environment))


def plot(argv: Sequence[str]) -> None:
    """Draw the learning curves of runs in one picture."""
    config = command.parse(Plot(), argv, "podracer plot")
    if not config.folders:
        raise UserError("which runs? podracer plot RUN [RUN ...], or a folder of them")
    if _draws_population(config):
        _plot_population(config.folders[0], config.out)
        return
    groups: dict[str, list[Any]] = {}
    for run in listing.find(config.folders):
        name = _group(run, config.by)
        points = listing.points(run, config.x, config.y)
        if len(points):
            groups.setdefault(name, []).append((points, run))
        else:
            print(f"{run.folder}: no {config.y} yet, left out")
    if not groups:
        like = nearest(config.y, VOCABULARY)
        raise UserError(f"no run has any {config.y}: nothing to draw{like}")
    for name, runs in groups.items():
        _describe(name, runs, config.x)

    # matplotlib is slow to import
    from podracer.runs.plot import compare, profiles, save

    curves = {name: [points for points, _ in runs] for name, runs in groups.items()}
    if config.profile:
        picture = profiles(curves, config.y)
    else:
        title = _title([run for runs in groups.values() for _, run in runs])
        picture = compare(curves, config.x, config.y, config.statistic, title)
    save(picture, config.out, config.out.suffix[1:])
    print(f"drawn in {config.out}")


def compare(argv: Sequence[str]) -> None:
    """Compare runs: a table, and one HTML page to send to a colleague."""
    config = command.parse(Compare(), argv, "podracer compare")
    if not config.folders:
        raise UserError("which runs? podracer compare RUN RUN ..., or a folder of them")
    from podracer.runs import comparison

    groups = comparison.groups_of(comparison.find(config.folders))
    print(*comparison.printed(groups), sep="\n")

    from podracer.runs import page  # matplotlib is slow to import

    for line in [*page.write(groups, config.html), f"compared in {config.html}"]:
        print(line)


def _draws_population(config: Plot) -> bool:
    """Whether a population's folder is given, and nothing is asked of its curves."""
    is_plain = config == Plot(config.folders, out=config.out)
    return (
        is_plain
        and len(config.folders) == 1
        and lineage.is_population(config.folders[0])
    )


def _plot_population(folder: Path, out: Path) -> None:
    history = lineage.read(folder, print)
    print(*lineage.described(history), sep="\n")
    names = run_folder.load_config(folder, name=run_folder.TOGETHER)["config"]

    # matplotlib is slow to import
    from podracer.runs.ancestry import population
    from podracer.runs.plot import save

    title = f"{names.get('agent')} on {names.get('env')}"
    save(population(history, title), out, out.suffix[1:])
    print(f"drawn in {out}")


def _group(run: listing.Run, by: Sequence[str]) -> str:
    values = [listing.printable(str(listing.field(run, name))) for name in by]
    if set(by) <= {"agent", "env"}:  # these need no field names
        return " on ".join(values)
    return ", ".join(f"{name} {value}" for name, value in zip(by, values))


def _title(runs: Sequence[listing.Run]) -> str:
    """What all runs have in common: the agent, the environment, or both."""
    names = [{str(run.config.get(x)) for run in runs} for x in ("agent", "env")]
    return listing.printable(" on ".join(min(x) for x in names if len(x) == 1))


def _describe(name: str, runs: list[tuple[Any, listing.Run]], x: str) -> None:
    """Prints how many runs a group has, and reasons to doubt its curve."""
    ends = [points[-1, 0] for points, _ in runs]
    seeds = {run.config.get("train", {}).get("seed") for _, run in runs}
    line = f"{name}: {len(runs)} run{'s' * (len(runs) > 1)}"
    if len(seeds) < len(runs):
        line += ", not all of different seeds"
    if min(ends) < 0.99 * max(ends):
        _, shortest = runs[ends.index(min(ends))]
        line += f", to {min(ends):,.0f} {x}, where {shortest.folder} ends"
    members = sum(lineage.is_adapted(run.config) for _, run in runs)
    if members:
        line += (
            f", {members} of a population whose members took over one another's learners: "
            "not independent runs"
        )
    print(line)


def list_runs(argv: Sequence[str]) -> None:
    """List runs: state, steps, mean return and age."""
    config = command.parse(Runs(), argv, "podracer runs")
    expected = config == Runs() and not config.folder.exists()
    runs = [] if expected else listing.find_all(config.folder)
    if not runs:
        print(
            f"{config.folder}: no runs here yet; anakin train and sebulba train make them"
        )
        return
    lines = listing.aligned([listing.COLUMNS, *listing.table(runs)])
    print(*lines, sep="\n")


def evaluate(argv: Sequence[str]) -> None:
    """Evaluate a run's agent by the command of its architecture."""
    named = [x for x in argv if not x.startswith("-")]
    folder = next((x for x in named if Path(x, run_folder.CONFIG).exists()), None)
    if not named and {*argv}.isdisjoint(HELP):
        raise UserError("which run? Name it first: podracer evaluate RUN")
    written = run_folder.load_config(folder or named[0])["command"] if named else ""
    program = "sebulba" if str(written).startswith("sebulba ") else "anakin"
    # In place of this process: this package does not import those that use it.
    os.execv(sys.executable, [sys.executable, "-m", program, "evaluate", *argv])


def start(argv: Sequence[str]) -> None:
    """Run a command on many hosts: local processes, SLURM, Cloud TPU, XPK."""
    launch.start(argv)


COMMANDS = {
    "runs": list_runs,
    "plot": plot,
    "compare": compare,
    "evaluate": evaluate,
    "export": export,
    "hub": hub,
    "launch": start,
}


def main() -> None:
    """`podracer COMMAND ...`; bad input is one line and exit code 2."""
    with command.exits("podracer"):
        command.dispatch(COMMANDS, sys.argv[1:], "podracer")


if __name__ == "__main__":
    main()
