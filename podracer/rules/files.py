"""Rule files: the weights of a learned update rule, with its configuration, as safetensors."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import safetensors
import safetensors.numpy
import tyro

from podracer import command, files
from podracer.agent import PyTree
from podracer.errors import UserError

MOST = np.finfo(np.float32).max  # of a weight: rules compute in float32
FLOATS = ("F32", "F16", "F64")  # dtypes that safetensors reads as NumPy's floats
BROKEN = safetensors.SafetensorError, ValueError, AttributeError, RecursionError
# The field of an agent's Config: `--update-rule FILE`, without the name of its part.
UpdateRule = Annotated[
    Path | None, tyro.conf.arg(aliases=["--update-rule"]), command.PINNED
]
# The one beside it, which no flag sets: the file's checksum, in a run's configuration.
Checksum = Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress]


class RuleFile(NamedTuple):
    """What a rule file holds."""

    config: Any  # the rule's own, a dataclass
    weights: PyTree  # dictionaries of numpy arrays
    about: dict[str, Any]  # whatever else its author noted: how it was trained, ...


def save_rule(
    path: str | Path,
    kind: str,
    config: Any,
    weights: PyTree,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Writes a rule file; a name in it is the path of an array, as `params.embedding.kernel`.

    Args:
      path: of the file.
      kind: of rule, which `load_rule` asks for: lpg, say.
      config: a dataclass, what the shapes of the weights depend on.
      weights: dictionaries of arrays, of any depth.
      about: JSON values, for people who read the file.

    Raises:
      UserError: it cannot be written.
    """
    tensors = {
        jax.tree_util.keystr(keys, simple=True, separator="."): np.asarray(x)
        for keys, x in jax.tree_util.tree_leaves_with_path(weights)
    }
    described = {
        "kind": kind,
        "config": dataclasses.asdict(config),
        "about": dict(about or {}),
    }
    # One entry: safetensors writes several in any order, and equal rules are equal files.
    data = safetensors.numpy.save(tensors, {"rule": json.dumps(described)})
    with files.writing(path), files.atomic(Path(path)) as temporary:
        temporary.write_bytes(data)


def load_rule(path: str | Path, kind: str, default: Any) -> RuleFile:
    """Reads a rule file.

    Args:
      path: of the file.
      kind: of rule that it must hold.
      default: the rule's configuration, whose fields the file's replace.

    Raises:
      UserError: the file is missing, damaged, or no rule of that kind.
    """
    data = read(path)
    try:
        dtypes = {name: x["dtype"] for name, x in safetensors.deserialize(data)}
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        described = json.loads(metadata.get("rule", "{}"))
        file_kind, config = described.get("kind"), described.get("config")
    except BROKEN as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"{path}: no rule file, or damaged: {reason}") from error
    if file_kind != kind:
        holds = f"a rule of kind {file_kind!r}" if file_kind else "no rule"
        raise UserError(f"{path}: holds {holds}; it must be of kind {kind!r}")
    try:
        config = command.filled(default, config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    _check_dtypes(path, dtypes)
    tensors = safetensors.numpy.load(data)
    _check_finite(path, tensors)
    return RuleFile(config, _nested(tensors), described.get("about", {}))


def check_shapes(path: str | Path, weights: PyTree, expected: PyTree) -> None:
    """Raises UserError where a file's weights are those of another architecture.

    Args:
      path: of the file.
      weights: the file's.
      expected: a pytree of arrays or their shapes, as the rule's `init` gives.
    """
    shapes = [
        {
            jax.tree_util.keystr(keys, simple=True, separator="."): x.shape
            for keys, x in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (weights, expected)
    ]
    for name in sorted(shapes[0].keys() | shapes[1].keys()):
        has, needs = (x.get(name, "missing") for x in shapes)
        if has != needs:
            raise UserError(
                f"{path}: a rule of another architecture: {name} is {has} in the file and "
                f"{needs} here"
            )


def read(path: str | Path) -> bytes:
    """A file's bytes. Raises UserError where it cannot be read."""
    try:
        return files.read(path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot read the rule file: {error.strerror or error}"
        ) from error


def checksum(path: str | Path) -> str:
    """16 hexadecimal digits of a file's content. Raises UserError as `read` does."""
    return hashlib.sha256(read(path)).hexdigest()[:16]


def check_checksum(path: str | Path, expected: str) -> None:
    """Raises UserError where a file is not the one of that checksum; "" is any."""
    if expected and checksum(path) != expected:
        raise UserError(
            f"{path}: the rule file has changed: its checksum is {checksum(path)}, but the "
            f"run began with {expected}: give that file, --update-rule FILE"
        )


def _check_dtypes(path: str | Path, dtypes: Mapping[str, str]) -> None:
    """Raises UserError for a dtype that is not FLOATS, and a name that leads to two things."""
    for name, dtype in sorted(dtypes.items()):
        if dtype not in FLOATS:
            raise UserError(
                f"{path}: {name} is {dtype}; weights must be {', '.join(FLOATS)}: "
                "convert them, or give another rule file"
            )
        if inside := next((x for x in dtypes if x.startswith(f"{name}.")), None):
            raise UserError(
                f"{path}: damaged, {name} is an array but {inside} is inside it: give "
                "another rule file"
            )


def _check_finite(path: str | Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Raises UserError for weights that are not finite in float32."""
    for name, x in tensors.items():
        if not (np.abs(x) <= MOST).all():
            raise UserError(f"{path}: {name} is not finite: give another rule file")


def _nested(tensors: Mapping[str, np.ndarray]) -> PyTree:
    """Dictionaries in dictionaries, of names with dots."""
    tree: dict[str, Any] = {}
    for name, x in tensors.items():
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = x
    return tree
