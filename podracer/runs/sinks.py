"""Where the rows of a run are written: its own file, TensorBoard, Weights & Biases.

A sink has `write(row)` and `close()`. One that fails during the run is dropped.
"""

import contextlib
import dataclasses
import importlib.util
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from podracer import files, imports, metrics
from podracer.errors import UserError
from podracer.runs import run_folder

MOST_ROWS = 100_000  # of a run, about 100 MB, however long it is
CLOSE_SECONDS = 60  # limit for Weights & Biases to send what is left

Row = Mapping[str, float]


class Sink(Protocol):
    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Config:
    """Sinks besides `metrics.jsonl`."""

    tensorboard: bool = False
    """also write the metrics for TensorBoard, into the run's folder"""
    wandb: str | None = None
    """project of Weights & Biases to send the metrics to; default: none"""

    def __post_init__(self):
        if self.tensorboard:
            _check_installed("tensorboardX", "tensorboard")
        if self.wandb:
            _check_installed("wandb", "wandb")


class Sinks:
    """All sinks of one run.

    Beyond MOST_ROWS rows, neighbouring rows are merged, so that disk use is bounded.

    Args:
      folder: of the run.
      total_steps: environment steps of the run.
      config: the sinks besides `metrics.jsonl`.
    """

    def __init__(self, folder: Path, total_steps: int, config: Config = Config()):
        self._folder, self._config = folder, config
        self._every = total_steps / MOST_ROWS  # environment steps
        self._waiting: list[Row] = []
        self._next_steps = 0.0  # when to write again

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            path = self._folder / run_folder.METRICS
            if written := metrics.last(path).get("steps", 0):
                self._wait_from(written)
            self._lines = stack.enter_context(metrics.JsonLines(path))
            self._others = dict(_others(self._folder, self._config, written))
            stack.callback(self._close_others)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        with self._stack, contextlib.suppress(*[UserError] if any(error) else []):
            self._flush()  # the first error is the one to report

    def write(self, row: Row) -> None:
        """Raises UserError if `metrics.jsonl` cannot be written."""
        self._waiting.append(row)
        if row["steps"] >= self._next_steps:
            self._flush()
            self._wait_from(row["steps"])

    def _wait_from(self, steps: float) -> None:
        self._next_steps = (steps // self._every + 1) * self._every

    def _flush(self) -> None:
        if not self._waiting:
            return
        row, self._waiting = metrics.merge(self._waiting), []
        self._lines.write(row)
        row = {name: x for name, x in row.items() if math.isfinite(x)}
        for name in [*self._others]:
            with self._dropped_if_it_fails(name):
                self._others[name].write(row)

    def _close_others(self) -> None:
        for name in [*self._others]:
            with self._dropped_if_it_fails(name):
                self._others.pop(name).close()

    @contextlib.contextmanager
    def _dropped_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001, whatever their library raises
            if sink := self._others.pop(name, None):
                with contextlib.suppress(Exception):
                    sink.close()
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            print(
                f"{name}: {reason}; it gets no more metrics, the run continues",
                file=sys.stderr,
            )


class TensorBoard:
    """Event files for TensorBoard.

    Written without tensorboardX's own thread, which hangs where the disk is full.

    Args:
      folder: for them.
      written: steps done before a resume; TensorBoard drops what was written after.
    """

    def __init__(self, folder: Path, written: int):
        from tensorboardX import record_writer, summary
        from tensorboardX.proto import event_pb2

        self._events, self._scalar = event_pb2, summary.scalar
        path = folder / f"events.out.tfevents.{time.time_ns()}"
        with files.writing(folder):
            folder.mkdir(exist_ok=True)
            self._file = record_writer.RecordWriter(str(path))
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(0, file_version="brain.Event:2")
            self._write(written + 1, session_log=start)

    def write(self, row: Row) -> None:
        for name, number in row.items():
            self._write(row["steps"], summary=self._scalar(name, number))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, steps: int, **what: Any) -> None:
        event = self._events.Event(wall_time=time.time(), step=int(steps), **what)
        self._file.write(event.SerializeToString())


class WandB:
    """A run of Weights & Biases; a resumed run continues its own."""

    def __init__(self, folder: Path, project: str):
        import wandb

        try:
            self._run = wandb.init(
                project=project,
                name=folder.name,
                id=_wandb_id(folder),
                resume="allow",
                reinit="create_new",  # a population's members are open at once
                dir=str(folder),
                config=run_folder.load_config(folder)["config"],
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    init_timeout=CLOSE_SECONDS,
                    finish_timeout=CLOSE_SECONDS,
                    finish_timeout_raises=True,
                ),
            )
        except Exception as error:
            raise UserError(
                f"--wandb {project}: {error} (leave it out, or WANDB_MODE=offline)"
            ) from error
        self._run.define_metric("*", step_metric="steps")

    def write(self, row: Row) -> None:
        self._run.log(row)

    def close(self) -> None:
        self._run.finish()


def _others(folder: Path, config: Config, written: int) -> Iterator[tuple[str, Sink]]:
    if config.tensorboard:
        yield "TensorBoard", TensorBoard(folder / run_folder.TENSORBOARD, written)
    if config.wandb:
        yield "Weights & Biases", WandB(folder, config.wandb)


def _wandb_id(folder: Path) -> str | None:
    """The id of this run there, if it was sent before: the end of its folder's name."""
    names = sorted(path.name for path in (folder / run_folder.WANDB).glob("*run-*-*"))
    return names[-1].rpartition("-")[2] if names else None


def _check_installed(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(
            f"--{extra} needs the package {module}: {imports.install(extra)}"
        )
