"""Records a training loop: metrics, checkpoints, the curve, and the progress shown."""

import contextlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from podracer.checkpoints.checkpoint import Checkpoints
from podracer.metrics import read
from podracer.runs.drawing import drawing
from podracer.runs.progress import Progress
from podracer.runs.run_folder import CURVE, METRICS, is_finished, keep_state
from podracer.runs.sinks import Config, Sinks

Updates = Generator[tuple[Any, dict[str, float] | None]]


def record(updates: Updates, folder: str | Path, total_steps: int, *rest, **options):
    """Runs a training loop to its end and returns its last state and metrics.

    The arguments are those of `recorded`. A loop that was stopped between two reports
    has None for its last metrics.
    """
    state = metrics = None
    for state, metrics in recorded(updates, folder, total_steps, *rest, **options):
        pass
    return state, metrics


def recorded(
    updates: Updates,
    folder: str | Path,
    total_steps: int,
    title: str = "training",
    quiet: bool = False,
    checkpoints: Checkpoints | None = None,
    sinks: Config | None = None,
    evaluate: Callable[[Any, dict[str, float]], dict[str, float]] = lambda _, row: row,
) -> Updates:
    """The same training loop, which is recorded on the way.

    Keeps `metrics.jsonl`, `curve.png` and `state.json` in the folder, up to the last
    metrics even if the loop raises, is interrupted or closed, and writes `checkpoints`
    where they are due and at the end; `evaluate` may add to a row; writes to the other
    `sinks`; shows the progress unless `quiet`. Raises UserError where it cannot write.
    """
    folder, state = Path(folder), None
    say = (lambda line: None) if quiet else print
    say(f"{title}: recorded in {folder}")

    before = read(folder / METRICS) if (folder / METRICS).exists() else ()

    with (
        keep_state(folder, lambda: is_finished(folder, total_steps)),
        Sinks(folder, total_steps, sinks or Config()) as rows,
        drawing(folder, title) as draw_if_due,
        Progress(total_steps, title, quiet, before) as progress,
        checkpoints or contextlib.nullcontext(),
        contextlib.closing(updates),  # a failing loop leaves no thread behind
        contextlib.closing(saved(updates, checkpoints)) as all_updates,
    ):
        for state, metrics in all_updates:
            if metrics is not None:
                metrics = evaluate(state, metrics)
                rows.write(metrics)
                progress.update(metrics)
                draw_if_due()
            yield state, metrics
    if state is None:
        say(f"{title}: nothing was left to do")
    else:
        say(f"{title}: {progress.summary()}, curve in {folder / CURVE}")


def followed(updates: Updates, checkpoints: Checkpoints) -> Updates:
    """A training loop that another host records: only its part is saved here."""
    with checkpoints, contextlib.closing(updates):
        yield from saved(updates, checkpoints)


def saved(updates: Updates, checkpoints: Checkpoints | None) -> Updates:
    """The same, with checkpoints where they are due, and at the end."""
    state = metrics = None
    try:
        for state, metrics in updates:
            yield state, metrics
            if checkpoints and checkpoints.is_due(metrics):
                checkpoints.save(state, metrics)
    except GeneratorExit:  # the caller's loop ended early
        if checkpoints and not sys.is_finalizing():
            checkpoints.save(state, metrics)
        raise
    if checkpoints and state is not None:
        checkpoints.save(state, metrics)
