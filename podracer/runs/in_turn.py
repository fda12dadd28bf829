"""Several runs, one after another: a folder of each in one folder, as `members` leaves them."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from podracer import command, files, metrics
from podracer.checkpoints import finding
from podracer.errors import UserError
from podracer.metrics import human
from podracer.runs import listing, results, run, run_folder
from podracer.runs.members import Member

COLUMNS = ("run", "seed", "steps", "return", "state")
WAITING = "not started"  # of a run that was never begun


def choose(config: Any) -> list[Member]:
    """A run for each seed; `config` is a command's, with `seed` and `seeds`."""
    return [
        Member(
            f"seed-{seed}", seed, {}, dataclasses.replace(config, seed=seed, seeds=1)
        )
        for seed in range(config.seed, config.seed + config.seeds)
    ]


def train(
    train_one: Callable[[Any], Any],
    members: Sequence[Member],
    config: Any,
    **about: Any,
) -> Path:
    """Trains one after another; returns the folder that holds a folder of each.

    A run whose metrics are not finite ends alone. Once asked to stop, the current run
    writes its checkpoint, and no other begins. A resumed folder continues with what is
    not finished; what had failed stays as it is.

    Args:
      train_one: trains to the end as a config says, which is like `config` but for its seed
        and folder; as `run.train` does.
      members: the runs.
      config: the command's, with `total_steps` and `keep`.
      **about: as for `run.train`.

    Raises FloatingPointError at the end for the runs that failed.
    """
    options, title = config.keep, f"{about['agent']} on {about['env']}"
    base = (
        options.resume.absolute()
        if options.resume
        else _started(members, config, about)
    )
    contents = about | {"train": config}
    run_folder.rewrite_config(base, contents, run_folder.TOGETHER)
    if not options.quiet:
        print(f"{title}: {len(members)} runs, one after another, recorded in {base}")
    with command.stopping() as stopped:
        try:
            for m in members:
                if stopped():
                    break
                if how := remaining(base / m.name, m.config):
                    keep = dataclasses.replace(options, **how)
                    with contextlib.suppress(FloatingPointError):  # told at the end
                        train_one(dataclasses.replace(m.config, keep=keep))
                    _draw(base, members, title)
        finally:
            if not options.quiet:
                print("\n".join(listing.aligned([COLUMNS, *table(base, members)])))
                folders = results.grouped([base / m.name for m in members], title)
                print(*results.described(folders), sep="\n")
                print(f"{title}: curve in {base / run_folder.CURVE}", flush=True)
    if failures := [x for m in members if (x := failure(base / m.name))]:
        raise FloatingPointError("; ".join(failures))
    return base


def table(base: Path, members: Sequence[Member]) -> list[tuple[str, ...]]:
    """A line of COLUMNS for each run: its return is the mean of the last episodes."""
    lines = []
    for m in members:
        folder = base / m.name
        rows = _rows(folder)
        recent = metrics.Recent(rows)
        steps = f"{rows[-1]['steps']:,.0f}" if rows else "0"
        state = run_folder.load_state(folder).get("state", WAITING)
        lines.append((m.name, f"{m.seed}", steps, human(recent.mean_return()), state))
    return lines


def _started(members: Sequence[Member], config: Any, about: dict[str, Any]) -> Path:
    """The folder for new runs, in which none is left that was there before."""
    options = config.keep
    if options.run and (options.run / run_folder.CONFIG).exists():
        raise UserError(
            f"{options.run}: is a run itself; choose another folder for several runs"
        )
    for m in members:  # all of them, before anything is written
        folder = options.run / m.name if options.run else None
        if folder:
            files.check_no_link(folder)
        run_folder.check_startable(folder, options.overwrite)
    base = options.run or run_folder.fresh(run.name_of(about))
    with files.writing(base):
        base.mkdir(parents=True, exist_ok=True)
    for m in members:
        if (base / m.name).exists():  # else a resume would take it for one of these
            contents = about | {"train": m.config}
            run_folder.create(base / m.name, contents, options.overwrite)
    return base.absolute()


def remaining(folder: Path, config: Any) -> dict[str, Any]:
    """The options with which a run starts or resumes; empty if nothing is left to do."""
    files.check_no_link(folder)
    if not (folder / run_folder.CONFIG).exists():
        return {"run": folder, "resume": None, "overwrite": False}
    whole = next(finding.find_whole(folder / run_folder.CHECKPOINTS), None)
    if failure(folder) or (whole and _is_done(folder, config, whole)):
        return {}
    if whole is None:
        return {"run": folder, "resume": None, "overwrite": True}
    return {"run": None, "resume": folder, "overwrite": False}


def _is_done(folder: Path, config: Any, updates: int) -> bool:
    """Whether a run has ended as it should, and its checkpoint of `updates` is the last."""
    rows, at = _rows(folder), config.keep.stop_at
    if not rows or updates < rows[-1]["updates"]:
        return False
    stops = at is not None and metrics.Recent(rows).has_reached(at)
    return stops or rows[-1]["steps"] >= config.total_steps


def failure(folder: Path) -> str | None:
    """What is said of a run whose metrics are not finite; other errors end all runs."""
    state = run_folder.load_state(folder)
    if state.get("type") != FloatingPointError.__name__:
        return None
    return f"{folder}: {state.get('error', 'failed')}"


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / run_folder.METRICS
    return [*metrics.read(path)] if path.exists() else []


def _draw(base: Path, members: Sequence[Member], title: str) -> None:
    """Draws one curve of all runs so far: the mean with its interval."""
    from podracer.runs import plot  # matplotlib is slow to import

    points = [
        listing.to_points(_rows(base / m.name), "steps", "episode_return")
        for m in members
    ]
    if points := [x for x in points if len(x)]:
        with files.writing(base):
            plot.save(plot.compare({title: points}), base / run_folder.CURVE)
