"""Actor parameters as safetensors and back: each tensor has the name of its path."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from podracer import files
from podracer.errors import UserError

WEIGHTS = "weights.safetensors"  # in a folder that is shared, beside config.json
MOST_HEADER = 2**27  # bytes: more than safetensors itself reads
BROKEN = safetensors.SafetensorError, ValueError, AttributeError, RecursionError


def names(params: Any) -> list[str]:
    """Of the leaves, in their order: the path of each, as `params.policy.Dense_0.kernel`."""
    return [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]


def is_kept(leaf: Any) -> bool:
    """Whether a file has this leaf: numbers and flags, not random keys."""
    return any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.number, jnp.bool_))


def written(params: Any, about: dict[str, str] | None = None) -> bytes:
    """A file with the numbers and flags; `about` is for people who read it."""
    leaves = zip(names(params), jax.tree.leaves(params), strict=True)
    tensors = {name: np.asarray(x) for name, x in leaves if is_kept(x)}
    return safetensors.numpy.save(tensors, about)


def count(params: Any) -> int:
    """How many numbers such a file has."""
    return sum(x.size for x in jax.tree.leaves(params) if is_kept(x))


def read(path: str | Path, params: Any) -> Any:
    """The parameters with the numbers of a file.

    Args:
      path: of the file.
      params: arrays, or their shapes and dtypes; random keys stay.

    Raises:
      UserError: the file cannot be read, is no safetensors, or its tensors are not those of
        `params`: the first one is named that is missing, superfluous or of another kind.
    """
    leaves, structure = jax.tree.flatten(params)
    expected = {
        name: x for name, x in zip(names(params), leaves, strict=True) if is_kept(x)
    }
    most = MOST_HEADER + sum(x.size * x.dtype.itemsize for x in expected.values())
    try:
        tensors = dict(safetensors.deserialize(files.read(path, most)))
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
    except BROKEN as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"{path}: no safetensors, or damaged: {reason}") from error
    _check(path, tensors, expected)
    return structure.unflatten(
        jnp.asarray(_array(tensors[name]["data"], x.dtype).reshape(x.shape))
        if name in expected
        else x
        for name, x in zip(names(params), leaves, strict=True)
    )


def _array(data: bytes, dtype: np.dtype) -> np.ndarray:
    """[N]; of flags, any byte but 0 is true."""
    if dtype == bool:
        return np.frombuffer(data, np.uint8) != 0
    return np.frombuffer(data, dtype)


def _check(path: str | Path, tensors: dict[str, Any], expected: dict[str, Any]) -> None:
    agent = "the agent of this run"
    if missing := [x for x in expected if x not in tensors]:
        raise UserError(f"{path}: has no {missing[0]}, which {agent} needs")
    if extra := sorted(tensors.keys() - expected.keys()):
        raise UserError(f"{path}: has {extra[0][:100]!r}, which {agent} has not")
    for name, x in expected.items():
        found = f"{tensors[name]['dtype']} {tuple(tensors[name]['shape'])}"
        wanted = f"{_code(x.dtype)} {x.shape}"
        if found != wanted:
            raise UserError(f"{path}: {name} is {found}; {agent} needs {wanted}")


def _code(dtype: np.dtype) -> str:
    """How safetensors writes a dtype: F32, BF16, I32, U8, ..."""
    name = dtype.name.replace("uint", "U").replace("int", "I").replace("bool", "BOOL")
    return name.replace("bfloat", "BF").replace("float", "F").replace("complex", "C")
