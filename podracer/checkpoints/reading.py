"""Reads the arrays of a checkpoint whose checksums have been verified.

Orbax refuses an empty array, so that a scalar stands for each in a checkpoint.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podracer import parallel
from podracer.checkpoints import of_host
from podracer.checkpoints.quiet import quiet
from podracer.errors import UserError
from podracer.parallel import hosts


def without_empty(state: Any) -> Any:
    """The state as a checkpoint has it, with a scalar in place of each empty array."""
    return jax.tree.map(lambda x: x if x.size else np.float32(0), state)


def check_readable(item: Path, state: Any) -> None:
    """Raises UserError where a checkpoint that was just written is not what it should be.

    Checksums show that bytes are as they were written, and not that they can be restored.
    """
    try:
        lost = _leaf_names(state) - _leaf_names(_read_metadata(item))
        reason = f"it has no {min(lost)}" if lost else ""
    except Exception as error:  # noqa: BLE001, whatever Orbax finds
        reason = (str(error).splitlines() or [""])[0][:100] or type(error).__name__
    if reason:
        raise UserError(
            f"{item.parent}: was written, but cannot be read: {reason}; choose another folder"
        )


def read_state(item: Path, state: Any, layout: Any) -> Any:
    """The arrays in the folder `item`, placed as those of `state`, a NamedTuple.

    See `Checkpoints.restore` for what is taken from `state` instead. Raises UserError
    for a checkpoint of another agent, network or environment.
    """
    saved = _read_metadata(item)
    words, fresh = layout._asdict(), state._asdict()
    # What is LOCAL as a whole are the counts since the last report, which start anew where
    # an agent has other metrics today.
    own = {
        name: x
        for name, x in fresh.items()
        if words[name] in (parallel.OPTIONAL, parallel.LOCAL)
        and (name not in saved or _leaf_names(saved[name]) != _leaf_names(x))
    }
    wanted = {name: x for name, x in fresh.items() if name not in own}

    def target(path: tuple, word: str, part: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda inner, x: _target(saved, path + inner, x, word), part
        )

    targets = jax.tree_util.tree_map_with_path(
        target, {name: words[name] for name in wanted}, wanted
    )
    unused = {name: saved[name] for name in own if name in saved}
    targets |= jax.tree.map(lambda x: np.empty(x.shape, x.dtype), unused)
    try:
        read = _read(item, targets)
    except ValueError as error:  # it holds more than it is asked for
        raise UserError(
            f"{item.parent}: of another agent, network or environment "
            f"({str(error).splitlines()[0][:100]})"
        ) from error
    read = type(state)(**read | own)
    _check_same_keys(item, read, state)
    read = jax.tree.map(lambda new, x: new if x.size else x, read, state)
    _say_what_starts_empty(item, read, state)
    return parallel.with_fresh(read, state, layout)


def _check_same_keys(item: Path, read: Any, state: Any) -> None:
    """Raises UserError where the keys are of another kind than those of JAX today."""
    for theirs, ours in zip(*map(jax.tree.leaves, (read, state)), strict=False):
        arrays = (x for x in (theirs, ours) if isinstance(x, jax.Array))
        kinds = [
            str(jax.random.key_impl(x))
            for x in arrays
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        ]
        if len({*kinds}) > 1:
            raise UserError(
                f"{item.parent}: its random keys are of {kinds[0]}, and "
                f"JAX_DEFAULT_PRNG_IMPL is {kinds[1]}: resume with "
                f"JAX_DEFAULT_PRNG_IMPL={kinds[0]}"
            )


def _say_what_starts_empty(item: Path, read: Any, state: Any) -> None:
    """Prints a line where the learner's local half is of another shape: `with_fresh`."""
    learners = [x.learner for x in (read, state) if hasattr(x, "learner")]
    shapes = [jax.tree.map(jnp.shape, x.local) for x in learners]
    if hosts.this() == 0 and shapes and shapes[0] != shapes[1]:
        print(
            f"{item.parent}: of another number of cores, or another capacity: what each "
            "core keeps for itself (replay, waiting episodes) starts empty"
        )


def read_shared(item: Path, shared: Any) -> Any:
    """The learner's SHARED half in the folder `item`, on one core."""
    from orbax import checkpoint as orbax

    place = tuple(map(jax.tree_util.GetAttrKey, ("learner", "shared")))
    saved = _read_metadata(item)
    targets = jax.tree_util.tree_map_with_path(
        lambda path, x: _target(saved, place + path, x, parallel.SHARED),
        shared,
    )
    wanted = {"learner": {"shared": targets}}
    with quiet(), orbax.Checkpointer(orbax.PyTreeCheckpointHandler()) as part:
        read = part.restore(
            item.absolute(),
            args=orbax.args.PyTreeRestore(
                item=wanted,
                restore_args=orbax.checkpoint_utils.construct_restore_args(wanted),
                partial_restore=True,
            ),
        )["learner"]["shared"]
    return jax.tree.map(
        lambda new, x: new if x.size else jnp.zeros(x.shape, x.dtype), read, shared
    )


def _reader() -> Any:
    """Orbax's, of this host alone: hosts do not wait for one another to read."""
    from orbax import checkpoint as orbax

    return orbax.Checkpointer(
        orbax.StandardCheckpointHandler(), multiprocessing_options=of_host.options()
    )


def _read_metadata(item: Path) -> Any:
    """The saved tree, with the shape of each array."""
    with quiet(), _reader() as reader:
        return reader.metadata(item.absolute()).item_metadata


def _read(item: Path, targets: Any) -> Any:
    from orbax import checkpoint as orbax

    with quiet(), _reader() as reader:
        return reader.restore(item.absolute(), args=orbax.args.StandardRestore(targets))


def _leaf_names(tree: Any) -> set[str]:
    """Names of the leaves; the same for a tree and for its metadata in a checkpoint."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves
    }


def _target(saved: Any, path: tuple, x: jax.Array, word: str) -> jax.ShapeDtypeStruct:
    """How to restore a leaf: like `x`, but REPLACEABLE leaves in their saved shape."""
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    for entry in path:
        key = getattr(entry, "name", getattr(entry, "key", getattr(entry, "idx", None)))
        try:
            saved = saved[key if isinstance(saved, list | tuple) else str(key)]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"the checkpoint has no {name}: it is of another agent, network or version "
                "of podracer"
            ) from None
    if x.size == 0:
        return parallel.like(jnp.float32(0), ())  # see `without_empty`
    shape = saved.shape
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        shape = shape[: x.ndim]
    if shape != x.shape and word not in parallel.REPLACEABLE:
        raise UserError(
            f"{name} is {shape} in the checkpoint and {x.shape} here: it is of another "
            "network, batch_size or environment"
        )
    return parallel.like(x, shape)
