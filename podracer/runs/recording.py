"""Records a training loop: metrics, checkpoints, the curve, and the progress shown."""

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from podracer import files
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.errors import UserError
from podracer.files import atomic, writing
from podracer.metrics import last, read
from podracer.runs.drawing import Curve
from podracer.runs.progress import Progress
from podracer.runs.run_folder import CURVE, METRICS, STATE, load_state
from podracer.runs.sinks import Config as SinkConfig
from podracer.runs.sinks import Sinks

Updates = Generator[tuple[Any, dict[str, float] | None]]


def record_updates(
    updates: Updates,
    folder: str | Path,
    total_steps: int,
    title: str = "training",
    quiet: bool = False,
    checkpoints: Checkpoints | None = None,
    sinks: SinkConfig | None = None,
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
        track_state(folder, total_steps) as check_ours,
        Sinks(folder, total_steps, sinks or SinkConfig()) as rows,
        Curve(folder, title) as curve,
        Progress(total_steps, title, quiet, before) as progress,
        checkpoints or contextlib.nullcontext(),
        contextlib.closing(updates),  # a failing loop leaves no thread behind
        contextlib.closing(_save_when_due(updates, checkpoints, check_ours)) as saved,
    ):
        for state, metrics in saved:
            check_ours()
            if metrics is not None:
                metrics = evaluate(state, metrics)
                rows.write(metrics)
                progress.update(metrics)
                curve.draw_if_due()
            yield state, metrics
    if state is None:
        say(f"{title}: nothing was left to do")
    else:
        say(f"{title}: {progress.summary()}, curve in {folder / CURVE}")
        if advice := progress.advice():
            say(f"{title}: {advice}")


def save_only(updates: Updates, checkpoints: Checkpoints) -> Updates:
    """A training loop that another host records: this one saves its part of the state."""
    with checkpoints, contextlib.closing(updates):
        yield from _save_when_due(updates, checkpoints)


def _save_when_due(
    updates: Updates,
    checkpoints: Checkpoints | None,
    check_ours: Callable[[], None] = lambda: None,
) -> Updates:
    """The same, with checkpoints where they are due, and at the end.

    `check_ours` is called before each; see `track_state`.
    """

    def save() -> None:
        check_ours()
        checkpoints.save(state, metrics)

    state = metrics = None
    try:
        for state, metrics in updates:
            yield state, metrics
            if checkpoints and checkpoints.is_due(metrics):
                save()
    except GeneratorExit:  # the caller's loop ended early
        if checkpoints and not sys.is_finalizing():
            save()
        raise
    if checkpoints and state is not None:
        save()


@contextlib.contextmanager
def track_state(folder: Path, total_steps: int) -> Iterator[Callable[[], None]]:
    """Maintains `state.json`: host, process and start of the run, and how it ended.

    Yields a function that raises UserError once the folder was moved or removed. Another
    run may have taken its place, where this one must write nothing more.
    """
    started = load_state(folder).get("started") or time.time()
    process = {"host": platform.node(), "pid": os.getpid(), "started": started}
    _write_state(folder, {"state": "running"} | process)
    error = None
    try:
        yield lambda: _check_ours(folder, process)
        steps = last(folder / METRICS).get("steps", 0)
        state = "finished" if steps >= total_steps else "stopped"
    except Exception as exception:
        state, error = "failed", exception
        raise
    except BaseException:  # Ctrl-C
        state = "stopped"
        raise
    finally:
        kind = type(error).__name__
        reason = {"error": f"{error}", "type": kind} if error else {}
        with contextlib.suppress(UserError):  # the first error is the one to report
            _check_ours(folder, process)
            try:
                _write_state(folder, {"state": state} | process | reason)
            except UserError:
                _rewrite_state(folder, {"state": state} | process)


def _write_state(folder: Path, contents: dict[str, Any]) -> None:
    with atomic(folder / STATE) as temporary:
        temporary.write_text(json.dumps(contents) + "\n")


def _rewrite_state(folder: Path, contents: dict[str, Any]) -> None:
    """Takes no more of a full disk than the file that is there."""
    path = folder / STATE
    with writing(path), open(path, "r+", opener=files.regular) as file:
        file.write(json.dumps(contents) + "\n")
        file.truncate()


def _check_ours(folder: Path, process: dict[str, Any]) -> None:
    """Raises UserError unless `state.json` is still that of this process."""
    try:
        ours = process.items() <= json.loads(files.read(folder / STATE)).items()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        ours = False
    except OSError:
        return  # nobody knows, as where a network file system pauses
    if not ours:
        raise UserError(
            f"{folder}: was moved, removed or replaced while the run wrote there; "
            "the run ends"
        )
