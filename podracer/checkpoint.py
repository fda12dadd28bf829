"""Checkpoints: the whole state of a run, on disk, whole or not at all.

Orbax writes them (https://orbax.readthedocs.io), beside the run's own work. It does not
notice a byte that changed on the disk, so checksums of its files are written last, before
the folder gets its name: what has the name is whole, or damaged since.
"""

import contextlib
import dataclasses
import json
import logging
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from podracer import parallel
from podracer.errors import UserError, check_at_least_one, check_range

CHECKSUMS = "checksums.json"
ITEM = "state"
CHUNK = 2**22  # bytes read at once
FINISH_SECONDS = 600  # for a save to be on disk

Metrics = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Config:
    """When to save, and what to keep."""

    minutes: float = 10.0
    """between two checkpoints; one more is written at the end"""
    steps: int | None = None
    """environment steps between two, besides"""
    keep: int = 3
    """the newest so many, and the one with the best mean return"""

    def __post_init__(self):
        check_range("minutes", self.minutes, 0.0)
        check_at_least_one(keep=self.keep)
        if self.steps is not None:
            check_at_least_one(steps=self.steps)


class Checkpoints:
    """The checkpoints of one run, each named by its number of updates.

    Args:
      folder: where they lie, or will.
      config: when to save, and what to keep.
    """

    def __init__(self, folder: str | Path, config: Config = Config()):
        from orbax import checkpoint as orbax  # slow to import
        from orbax.checkpoint.checkpoint_managers import preservation_policy as keep

        logging.getLogger("absl").setLevel(logging.ERROR)  # it tells every step
        self._orbax, self.folder, self._config = orbax, Path(folder), config
        self.restored = 0  # updates
        self._saving = 0  # updates
        self._saved_time, self._saved_steps = time.monotonic(), 0
        self._manager = orbax.CheckpointManager(
            self.folder.absolute(),
            item_handlers={ITEM: orbax.StandardCheckpointHandler()},
            options=orbax.CheckpointManagerOptions(
                create=False,
                preservation_policy=keep.AnyPreservationPolicy(
                    [
                        keep.LatestN(config.keep),
                        keep.BestN(get_metric_fn=_return, n=1),
                    ]
                ),
                async_options=orbax.AsyncOptions(
                    timeout_secs=FINISH_SECONDS,
                    post_finalization_callback=self._seal,
                ),
            ),
        )

    def is_due(self, metrics: Metrics | None) -> bool:
        """Whether the minutes or the steps between two checkpoints have passed."""
        every, steps = self._config.steps, metrics["steps"] if metrics else 0
        return time.monotonic() - self._saved_time >= 60 * self._config.minutes or (
            every is not None and steps // every > self._saved_steps // every
        )

    def save(self, state: Any, metrics: Metrics | None) -> None:
        """Copies the state and goes on; it is on disk soon after, or at the next call.

        Args:
          state: a tree of arrays with `updates`, which name the checkpoint; it may be
            used up afterwards.
          metrics: of the last report; `episode_return` says which checkpoint is the best.

        Raises:
          UserError: this one or the one before cannot be written; what there was is kept.
        """
        metrics, args = metrics or {}, self._orbax.args
        updates = int(parallel.on_host(state.updates))
        with self._writing():
            self._manager.wait_until_finished()
            if updates not in self._manager.all_steps():
                self._saving = updates
                self.folder.mkdir(exist_ok=True)
                self._manager.save(
                    updates,
                    metrics={"episode_return": _number(metrics.get("episode_return"))},
                    args=args.Composite(**{ITEM: args.StandardSave(state)}),
                )
        self._saved_time = time.monotonic()
        self._saved_steps = metrics.get("steps", self._saved_steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_) -> None:
        """Waits until everything is on disk. Raises UserError where it is not."""
        try:
            with self._writing():
                self._manager.wait_until_finished()
                self._manager.close()
        except UserError:
            if error is None:  # else that is the one to tell
                raise

    def good(self, say: Callable[[str], None] = print) -> Iterator[int]:
        """The updates of whole checkpoints, newest first; says which are damaged."""
        for updates in sorted(self._manager.all_steps(read=True), reverse=True):
            if problem := _problem(self._path(updates)):
                say(f"{self._path(updates)}: {problem}; the one before it is used")
            else:
                yield updates

    def restore(self, state: Any, layout: Any) -> Any:
        """The newest whole checkpoint, laid over the cores as `state` is.

        On another number of cores, what belongs to one core (LOCAL) is `state`'s own;
        so is an OPTIONAL field that the checkpoint lacks or has in other shapes.

        Args:
          state: a fresh state, which says shapes, types and where things lie: a NamedTuple.
          layout: its words, see `podracer.parallel`.

        Raises:
          UserError: there is none, or it is of another agent, network or environment.
        """
        for updates in self.good():
            self.restored = updates
            return self._read(updates, state, layout)
        raise UserError(f"{self.folder}: no whole checkpoint; start the run again")

    def _read(self, updates: int, state: Any, layout: Any) -> Any:
        saved = self._manager.item_metadata(updates)[ITEM]
        fields, words = state._asdict(), layout._asdict()
        others = {
            name
            for name, word in words.items()
            if word == parallel.OPTIONAL
            and (name not in saved or _shapes(saved[name]) != _shapes(fields[name]))
        }

        def target(path: tuple, word: str, part: Any) -> Any:
            return jax.tree_util.tree_map_with_path(
                lambda inner, x: _target(saved, path + inner, x, word), part
            )

        same = {name: x for name, x in fields.items() if name not in others}
        targets = jax.tree_util.tree_map_with_path(
            target, {name: words[name] for name in same}, same
        ) | {name: _as_saved(saved[name]) for name in others & saved.keys()}
        restore = self._orbax.args.StandardRestore(targets)
        try:
            whole = self._manager.restore(
                updates, args=self._orbax.args.Composite(**{ITEM: restore})
            )[ITEM]
        except ValueError as error:  # it holds more than it is asked for
            raise UserError(
                f"{self._path(updates)}: of another agent, network or environment "
                f"({str(error).splitlines()[0][:100]})"
            ) from error
        whole |= {name: fields[name] for name in others}
        return parallel.with_fresh_local(type(state)(**whole), state, layout)

    def _seal(self) -> None:
        """Writes the checksums into the folder that Orbax is about to name."""
        (unnamed,) = self.folder.glob(f"{self._saving}.orbax-checkpoint-tmp*")
        (unnamed / CHECKSUMS).write_text(json.dumps(_checksums(unnamed)))

    def _path(self, updates: int) -> Path:
        return self.folder / str(updates)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One line for what Orbax and its library raise where a disk refuses."""
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise UserError(
                f"{self._path(self._saving)}: cannot write: {reason}; earlier checkpoints "
                "are kept: --resume goes on from them"
            ) from error


def _return(metrics: Mapping[str, float | None]) -> float:
    return -math.inf if metrics["episode_return"] is None else metrics["episode_return"]


def _number(x: float | None) -> float | None:
    return None if x is None or math.isnan(x) else float(x)


def _checksums(folder: Path) -> dict[str, list[int]]:
    """[size, CRC-32] of each file of a checkpoint but those of the whole folder."""
    files = (path for path in sorted(folder.glob("*/**/*")) if path.is_file())
    return {str(path.relative_to(folder)): _checksum(path) for path in files}


def _checksum(path: Path) -> list[int]:
    size = crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


def _problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        wanted = json.loads((folder / CHECKSUMS).read_text())
        found = _checksums(folder)
    except (OSError, ValueError) as error:
        return f"damaged ({error})"
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            return f"damaged ({name} is missing)"
        if found[name] != wanted.get(name):
            return f"damaged ({name} has changed)"
    return None


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """By names that say the same of a tree and of what describes it in a checkpoint."""

    def shape(x: Any) -> tuple[int, ...]:
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x).shape if is_key else tuple(x.shape)

    return {
        jax.tree_util.keystr(path, simple=True, separator="."): shape(x)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def _as_saved(saved: Any) -> Any:
    """To restore a part as it is, on the host: Orbax wants to be asked for all parts."""
    return jax.tree.map(lambda x: np.empty(x.shape, x.dtype), saved)


def _target(saved: Any, path: tuple, x: jax.Array, word: str) -> jax.ShapeDtypeStruct:
    """What to restore a leaf as: as `x`, but LOCAL ones in the shape that they have."""
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    for entry in path:
        key = getattr(entry, "name", getattr(entry, "key", getattr(entry, "idx", None)))
        try:
            saved = saved[key if isinstance(saved, dict | list | tuple) else str(key)]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"the checkpoint has no {name}: it is of another agent or network"
            ) from None
    shape = saved.shape
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        shape = shape[: x.ndim]
    if shape != x.shape and word != parallel.LOCAL:
        raise UserError(
            f"{name} is {shape} in the checkpoint and {x.shape} here: it is of another "
            "network, batch_size or environment"
        )
    return parallel.like(x, shape)
