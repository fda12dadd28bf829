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

from podracer.checkpoints.checkpoint import Checkpoints
from podracer.errors import UserError
from podracer.files import atomic, writing
from podracer.metrics import last, read
from podracer.runs.drawing import drawing
from podracer.runs.progress import Progress
from podracer.runs.run_folder import CURVE, METRICS, STATE, load_state
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
        keep_state(folder, lambda: is_finished(folder, total_steps)) as check_ours,
        Sinks(folder, total_steps, sinks or Config()) as rows,
        drawing(folder, title) as draw_if_due,
        Progress(total_steps, title, quiet, before) as progress,
        checkpoints or contextlib.nullcontext(),
        contextlib.closing(updates),  # a failing loop leaves no thread behind
        contextlib.closing(saved(updates, checkpoints, check_ours)) as all_updates,
    ):
        for state, metrics in all_updates:
            check_ours()
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


def saved(
    updates: Updates,
    checkpoints: Checkpoints | None,
    check_ours: Callable[[], None] = lambda: None,
) -> Updates:
    """The same, with checkpoints where they are due, and at the end.

    `check_ours` is called before each; see `keep_state`.
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
def keep_state(
    folder: Path, finished: Callable[[], bool]
) -> Iterator[Callable[[], None]]:
    """Maintains `state.json`: host, process and start of the run, and how it ended.

    Yields a function that raises UserError once the folder was moved or removed. Another
    run may have taken its place, where this one must write nothing more.
    """
    started = load_state(folder).get("started") or time.time()
    process = {"host": platform.node(), "pid": os.getpid(), "started": started}

    def text(state: str, **more: str) -> str:
        return json.dumps({"state": state} | process | more) + "\n"

    def write(state: str, **more: str) -> None:
        with atomic(folder / STATE) as temporary:
            temporary.write_text(text(state, **more))

    def write_in_place(state: str) -> None:
        """For a full disk: takes no more of it than what is there."""
        with writing(folder / STATE), open(folder / STATE, "r+") as file:
            file.write(text(state))
            file.truncate()

    def check_ours() -> None:
        try:
            ours = process.items() <= json.loads((folder / STATE).read_text()).items()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            ours = False
        except OSError:
            return  # nobody knows, as where a network file system pauses
        if not ours:
            raise UserError(
                f"{folder}: was moved, removed or replaced while the run wrote there; "
                "the run ends"
            )

    write("running")
    try:
        yield check_ours
        state, error = "finished" if finished() else "stopped", None
    except Exception as exception:
        state, error = "failed", exception
        raise
    except BaseException:  # Ctrl-C
        state, error = "stopped", None
        raise
    finally:
        with contextlib.suppress(UserError):  # the first error is the one to report
            check_ours()
            try:
                write(state, **({"error": f"{error}"} if error else {}))
            except UserError:
                write_in_place(state)


def is_finished(folder: Path, total_steps: int) -> bool:
    """Whether a run's metrics have reached its last environment step."""
    return last(folder / METRICS).get("steps", 0) >= total_steps
