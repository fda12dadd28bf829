"""Checkpoints: the whole state of a run on disk, written completely or not at all.

Orbax writes them in the background (https://orbax.readthedocs.io). It does not detect a
byte that changed on the disk, so checksums of its files are written last, before the
folder gets its final name: a folder with that name was complete when it was written.
Reading verifies the checksums before anything else.
"""

import contextlib
import dataclasses
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from podracer import parallel
from podracer.checkpoints import checksums, finding, of_host, reading, retention
from podracer.checkpoints.quiet import drop_late_callbacks
from podracer.errors import UserError, check_at_least_one, check_range
from podracer.parallel import hosts

ITEM = "state"
FINISH_SECONDS = 600  # limit for a save to be on disk

Metrics = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Config:
    """When to save, and what to keep."""

    minutes: float = 10.0
    """minutes between two checkpoints; one more is written at the end"""
    steps: int | None = None
    """environment steps between two checkpoints, in addition; default: only by minutes"""
    keep: int = 3
    """number of newest checkpoints to keep, besides the one with the best mean return"""

    def __post_init__(self):
        check_range("minutes", self.minutes, 0.0)
        check_at_least_one(keep=self.keep, steps=self.steps)


class Checkpoints:
    """The checkpoints of one run, each named by its number of updates.

    Args:
      folder: where they are, or will be.
      config: when to save, and what to keep.
      alone: this host alone has the run, and every state is on one of its cores; otherwise
        all hosts make the same calls.
    """

    def __init__(
        self, folder: str | Path, config: Config = Config(), alone: bool = False
    ):
        from orbax import checkpoint as orbax  # slow to import

        self._orbax, self.folder, self._config = orbax, Path(folder), config
        self.restored_updates = 0  # updates of the checkpoint that was read
        self._saving = 0  # updates of the one being written
        self._is_tried = False  # that what this run writes can be read
        self._saved_time, self._saved_steps = time.monotonic(), 0
        self._manager = None  # until the first save
        self._alone = alone and hosts.number_of() > 1

    def _open_manager(self) -> Any:
        """Orbax's manager, which writes checkpoints and removes old ones."""
        orbax = self._orbax
        drop_late_callbacks()
        self.folder.mkdir(exist_ok=True)
        options = orbax.CheckpointManagerOptions(
            create=False,
            cleanup_tmp_directories=True,  # of a process that was killed
            lightweight_initialize=True,  # reads nothing, so damage stops nothing
            preservation_policy=retention.Retention(self.folder, self._config.keep),
            best_fn=retention.best_by,  # or metrics would not be on the disk
            async_options=orbax.AsyncOptions(
                timeout_secs=FINISH_SECONDS,
                # Else hosts would take one another's folders for their own: Orbax counts
                # those of all hosts together.
                create_directories_asynchronously=not self._alone,
                post_finalization_callback=self._seal,
            ),
        )
        handler = orbax.StandardCheckpointHandler()
        if self._alone:
            handler = of_host.handler()
            options.multiprocessing_options = of_host.options()
        return orbax.CheckpointManager(
            self.folder.absolute(), item_handlers={ITEM: handler}, options=options
        )

    def is_due(self, metrics: Metrics | None) -> bool:
        """Whether the minutes or the steps between two checkpoints have passed.

        All hosts call this together, and all save if it is due on any of them; or this host
        alone.
        """
        every, steps = self._config.steps, metrics["steps"] if metrics else 0
        due = time.monotonic() - self._saved_time >= 60 * self._config.minutes or (
            every is not None and steps // every > self._saved_steps // every
        )
        return due if self._alone else hosts.agree(0, due)[1]

    def save(self, state: Any, metrics: Metrics | None) -> None:
        """Copies the state; it is on disk soon after, at the latest by the next call.

        Args:
          state: a tree of arrays with `updates`, which names the checkpoint; its memory
            may be reused afterwards.
          metrics: of the last report; `episode_return` decides which checkpoint is best.

        Raises:
          UserError: this checkpoint, or the previous one, cannot be written, the cores
            disagree on what they share, or the first that was written cannot be read. The
            checkpoints on disk are kept.
        """
        parallel.check_shared(state)  # a diverged run is not kept
        metrics, args = metrics or {}, self._orbax.args
        updates = int(parallel.on_host(state.updates))
        self._saving = self._saving or updates  # an error names a checkpoint
        with self._writing():
            self._manager = self._manager or self._open_manager()
            self._manager.wait_until_finished()
            if updates not in self._manager.all_steps():
                self._saving = updates
                item = reading.without_empty(state)
                to_save = (
                    args.PyTreeSave(of_host.item(item))
                    if self._alone
                    else args.StandardSave(item)
                )
                self._manager.save(
                    updates,
                    metrics={retention.RETURN: _number(metrics.get(retention.RETURN))},
                    args=args.Composite(**{ITEM: to_save}),
                )
            if not self._is_tried:
                self._manager.wait_until_finished()
        if not self._is_tried:
            reading.check_readable(self._path(updates) / ITEM, state)
            self._is_tried = True
        self._saved_time = time.monotonic()
        self._saved_steps = metrics.get("steps", self._saved_steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_) -> None:
        """Waits until everything is on disk. Raises UserError where it is not."""
        if self._manager is None:
            return
        try:
            with self._writing():
                self._manager.wait_until_finished()
                self._manager.close()
        except UserError:
            if error is None:  # else the first error is the one to report
                raise

    def restore(self, state: Any, layout: Any, updates: int | None = None) -> Any:
        """The newest whole checkpoint, or a given one, placed on the cores as `state` is.

        Damaged checkpoints that are newer are named and renamed. On another number of
        cores, what belongs to one core (LOCAL) is taken from `state`; so is a field that is
        OPTIONAL, or LOCAL as a whole, if the checkpoint lacks it or has another structure.

        Args:
          state: a fresh state, a NamedTuple, which gives shapes, types and placement.
          layout: a word of `podracer.parallel` for each part of the state.
          updates: of the checkpoint; default: the newest whole one.

        Raises:
          UserError: there is none, it belongs to another agent, network or environment,
            or its folder was renamed.
        """
        newest, damaged = updates, []
        if updates is None:
            newest, damaged = hosts.lead(lambda: finding.choose_to_resume(self.folder))
        if newest is None:
            raise finding.no_whole_error(self.folder, damaged, "start the run again")
        self.restored_updates = newest
        path = self._path(newest)
        restored_state = reading.read_state(path / ITEM, state, layout)
        updates = int(parallel.on_host(restored_state.updates))
        if updates != newest:  # metrics are cut there
            raise UserError(
                f"{path}: holds the state after {updates} updates, not {newest}: name the "
                f"folder {updates}, or move it away"
            )
        return restored_state

    def restore_shared(self, shared: Any, updates: int | None = None) -> Any:
        """Only the learner's SHARED half, on one core: what acting needs.

        Args:
          shared: a fresh one, or its jax.ShapeDtypeStructs, which gives shapes, types
            and the core.
          updates: of the checkpoint; default: the newest whole one.

        Raises:
          UserError: there is no such checkpoint, it is of another agent or network, or its
            run removed it meanwhile, several times where it is to be the newest.
        """
        drop_late_callbacks()
        for _ in range(finding.ATTEMPTS if updates is None else 1):
            self.restored_updates = finding.choose_to_read(self.folder, updates)
            path = self._path(self.restored_updates)
            try:
                return reading.read_shared(path / ITEM, shared)
            except Exception as error:  # Orbax raises a plain one, too
                if checksums.find_problem(path) is None:
                    raise
                cause = error
        raise finding.removal_error(path) from cause

    def _seal(self) -> None:
        """Writes the checksums into the folder that Orbax is about to rename."""
        if hosts.this() and not self._alone:
            return  # the first host does, once all have written theirs
        (unnamed,) = self.folder.glob(f"{self._saving}.orbax-checkpoint-tmp*")
        checksums.write(unnamed)

    def _path(self, updates: int) -> Path:
        return self.folder / str(updates)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One line for what Orbax and its libraries raise where a disk refuses."""
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            whole = finding.find_whole(self.folder)
            earlier = next((n for n in whole if n != self._saving), None)
            way_out = "there is no earlier checkpoint"
            if earlier is not None:
                way_out = f"--resume continues from checkpoint {earlier}"
            raise UserError(
                f"{self._path(self._saving)}: cannot write: {_reason(error)}; {way_out}"
            ) from error


def _reason(error: Exception) -> str:
    """What the system says, which TensorStore puts at the end of a long message."""
    text = str(error).strip()
    if code := re.search(r"os_error_code='(\d+)'", text):
        return os.strerror(int(code[1]))
    strerror = isinstance(error, OSError) and error.strerror
    return strerror or text.partition("\n")[0][:200] or type(error).__name__


def _number(x: float | None) -> float | None:
    return None if x is None or math.isnan(x) else float(x)
