"""Specs of observations and actions as JSON: a run's folder says what its agent sees."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dm_env import specs


def encode(spec: Any) -> Any:
    """A tree of dm_env specs as plain values; NamedTuples become tuples."""
    if isinstance(spec, dict):
        return {"dict": {name: encode(part) for name, part in spec.items()}}
    if isinstance(spec, tuple):
        return {"tuple": [encode(part) for part in spec]}
    if isinstance(spec, specs.DiscreteArray):
        return {"values": int(spec.num_values), "dtype": spec.dtype.name}
    plain = {"shape": list(spec.shape), "dtype": spec.dtype.name}
    if isinstance(spec, specs.BoundedArray):
        plain |= {"minimum": _bound(spec.minimum), "maximum": _bound(spec.maximum)}
    return plain


MOST = 2**26  # entries of an observation; more is damage, and would exhaust the memory


def decode(plain: Any) -> Any:
    """The specs of which `encode` made this; some exception where it is no such thing."""
    if "dict" in plain:
        return {name: decode(part) for name, part in plain["dict"].items()}
    if "tuple" in plain:
        return tuple(map(decode, plain["tuple"]))
    dtype = np.dtype(plain["dtype"])
    if max(math.prod(plain.get("shape", ())), plain.get("values", 0)) > MOST:
        raise ValueError(f"a spec of more than {MOST} entries")
    if "values" in plain:
        return specs.DiscreteArray(plain["values"], dtype)
    if "minimum" not in plain:
        return specs.Array(plain["shape"], dtype)
    low, high = (np.array(plain[x]).astype(dtype) for x in ("minimum", "maximum"))
    return specs.BoundedArray(plain["shape"], dtype, low, high)


def as_spec(spec: Any, tree: Any) -> Any:
    """A tree of arrays or numbers in the structure and types of a spec.

    Dictionaries may be in any order; any sequence is a tuple. Raises ValueError where the
    names or a length differ, and for a number that the spec's type does not have.
    """
    if isinstance(spec, dict):
        if not isinstance(tree, Mapping) or tree.keys() != spec.keys():
            raise ValueError(
                f"{_what(tree)}; it must be a dictionary of {', '.join(spec)}"
            )
        return {name: as_spec(part, tree[name]) for name, part in spec.items()}
    if isinstance(spec, tuple):
        if not isinstance(tree, Sequence) or len(tree) != len(spec):
            raise ValueError(f"{_what(tree)}; it must be {len(spec)} arrays")
        return tuple(map(as_spec, spec, tree))
    untyped = np.asarray(tree)
    if untyped.dtype.kind in "OUSc":
        raise ValueError(f"an observation is {tree!r:.40}; it must be {spec.dtype}")
    with np.errstate(invalid="ignore"):  # a NaN as an integer is noticed below
        array = untyped.astype(spec.dtype)
    if array.dtype.kind != "f" and (lost := array != untyped).any():
        raise ValueError(
            f"an observation has {untyped[lost].flat[0]}; it must be {spec.dtype}"
        )
    return array


def _what(tree: Any) -> str:
    parts = (
        ", ".join(map(str, tree)) if isinstance(tree, Mapping) else type(tree).__name__
    )
    return f"an observation is {parts}"


def _bound(x: np.ndarray) -> Any:
    """One number where all are equal; infinities as text, which JSON has no number for."""
    numbers = np.asarray(x)
    if numbers.size and (numbers == numbers.flat[0]).all():
        numbers = numbers.flat[:1].reshape(())
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        numbers = numbers.astype(str)
    return numbers.tolist()
