"""Specs of observations and actions as JSON: a run's folder says what its agent sees."""

import collections
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from dm_env import specs

from podracer import starts
from podracer.errors import UserError


def encode(spec: Any) -> Any:
    """A tree of dm_env specs as plain values.

    Dictionaries may have keys of text or integers; NamedTuples keep their names. Raises
    UserError for other keys.
    """
    if isinstance(spec, dict):
        if all(type(key) is str for key in spec):
            return {"dict": {key: encode(part) for key, part in spec.items()}}
        if all(type(key) is int for key in spec):
            return {"integers": [[key, encode(part)] for key, part in spec.items()]}
        raise UserError(
            f"a spec is a dictionary with the keys {[*spec]}; they must be all text, or all "
            "integers"
        )
    if hasattr(spec, "_fields"):
        parts = [[name, encode(part)] for name, part in spec._asdict().items()]
        of = type(spec)
        return {"named": of.__name__, "module": of.__module__, "fields": parts}
    if isinstance(spec, tuple):
        return {"tuple": [encode(part) for part in spec]}
    if isinstance(spec, specs.DiscreteArray):
        plain = {"values": int(spec.num_values), "dtype": spec.dtype.name}
        return plain | _start(spec)
    if not isinstance(spec, specs.Array):
        raise UserError(
            f"a spec has a {type(spec).__name__} in it; it must consist of dictionaries, "
            "tuples, NamedTuples and dm_env specs"
        )
    plain = {"shape": list(spec.shape), "dtype": spec.dtype.name}
    if isinstance(spec, specs.BoundedArray):
        plain |= {"minimum": _bound(spec.minimum), "maximum": _bound(spec.maximum)}
    return plain | _start(spec)


def _start(spec: Any) -> dict[str, Any]:
    return {"start": starts.of(spec).tolist()} if hasattr(spec, "start") else {}


# Two types of the same names are different trees to JAX.
NamedTupleType = Callable[[str, tuple[str, ...], str | None], type]


def named_tuple(name: str, fields: tuple[str, ...], module: str | None = None) -> type:
    """A type of our own, whatever the module: the same for the same names."""
    return _named_tuple(name, fields)


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> type:
    return collections.namedtuple(name, fields)


def users_named_tuple(name: str, fields: tuple[str, ...], module: str | None) -> type:
    """The type of these names that the user's own code has defined, or else our own.

    Nothing is imported: the user's environment has been. The newest of the module comes
    first, then that of any module: a script's `__main__` may be imported under its name.
    """
    known = [
        x
        for x in tuple.__subclasses__()  # in the order of their definition
        if x.__name__ == name and getattr(x, "_fields", None) == fields
        if x.__module__ != __name__  # not one of our own
    ]
    of_module = [x for x in known if x.__module__ == module]
    return [named_tuple(name, fields), *known, *of_module][-1]


MOST = 2**26  # entries of an observation; more is damage, and would exhaust the memory


def decode(plain: Any, types: NamedTupleType = named_tuple) -> Any:
    """The specs of which `encode` made this; some exception where it is no such thing.

    Args:
      plain: the values.
      types: (name, names of its fields, module or None) -> the type of a NamedTuple.
    """
    part_of = functools.partial(decode, types=types)
    if "dict" in plain:
        return {name: part_of(part) for name, part in plain["dict"].items()}
    if "integers" in plain:
        return {int(key): part_of(part) for key, part in plain["integers"]}
    if "named" in plain:
        names, parts = zip(*plain["fields"], strict=True)
        of = types(plain["named"], names, plain.get("module"))
        return of(*map(part_of, parts))
    if "tuple" in plain:
        return tuple(map(part_of, plain["tuple"]))
    dtype = np.dtype(plain["dtype"])
    if max(math.prod(plain.get("shape", ())), plain.get("values", 0)) > MOST:
        raise ValueError(f"a spec of more than {MOST} entries")
    if "values" in plain:
        return starts.Choice(plain["values"], dtype, plain.get("start", 0))
    if "minimum" not in plain:
        return specs.Array(plain["shape"], dtype)
    low, high = (np.array(plain[x]).astype(dtype) for x in ("minimum", "maximum"))
    if "start" in plain:
        return starts.Choices(plain["shape"], dtype, low, high, plain["start"])
    return specs.BoundedArray(plain["shape"], dtype, low, high)


def in_types_of(spec: Any, tree: Any) -> Any:
    """A tree in the NamedTuple types of a decoded spec, if all names are the same."""
    paths = [
        [path for path, _ in jax.tree_util.tree_leaves_with_path(x)]
        for x in (spec, tree)
    ]
    if paths[0] != paths[1]:
        return tree
    return jax.tree.unflatten(jax.tree.structure(spec), jax.tree.leaves(tree))


def as_spec(spec: Any, tree: Any) -> Any:
    """An environment's own arrays or numbers in the structure and types of a spec.

    Dictionaries may be in any order; any sequence is a tuple, and a NamedTuple also a
    dictionary or NamedTuple of its names. Choices are counted from 0, see `podracer.starts`.
    Raises ValueError where the names or a length differ, for a choice that there is not, and
    for a number that the spec's type does not have.
    """
    if isinstance(spec, dict):
        if not isinstance(tree, Mapping) or tree.keys() != spec.keys():
            names = ", ".join(map(str, spec))
            lacks = [x for x in spec if isinstance(tree, Mapping) and x not in tree]
            which = (
                f"an observation lacks {lacks[0]!r}, having {', '.join(map(str, tree))}"
                if lacks
                else _what(tree)
            )
            raise ValueError(f"{which}; it must be a dictionary of {names}")
        return {name: as_spec(part, tree[name]) for name, part in spec.items()}
    if hasattr(spec, "_fields"):
        if hasattr(tree, "_fields"):
            tree = tree._asdict()
        if isinstance(tree, Mapping):
            return type(spec)(**as_spec(spec._asdict(), tree))
        return type(spec)(*as_spec(tuple(spec), tree))
    if isinstance(spec, tuple):
        if not isinstance(tree, Sequence) or len(tree) != len(spec):
            raise ValueError(f"{_what(tree)}; it must be {len(spec)} arrays")
        return tuple(map(as_spec, spec, tree))
    untyped = np.asarray(tree)
    if untyped.dtype.kind in "OUSc":
        raise ValueError(f"an observation is {tree!r:.40}; it must be {spec.dtype}")
    counted = starts.from_own(spec, untyped)
    with np.errstate(invalid="ignore"):  # a NaN as an integer is noticed below
        array = counted.astype(spec.dtype)
    if array.dtype.kind != "f" and (lost := array != counted).any():
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
