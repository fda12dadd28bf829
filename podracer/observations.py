"""The leaves of observations and actions: their names, and which of them mean what."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from dm_env import specs

from podracer.agent import PyTree
from podracer.errors import UserError

ACTION_MASK = "action_mask"  # the field that says which actions are allowed


def named(tree: PyTree, is_leaf: Callable | None = None) -> dict[str, Any]:
    """The leaves by their paths, as `camera.pixels`; that of a tree of one leaf is empty."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf)
    }


def selected(tree: PyTree, names: Sequence[str]) -> PyTree:
    """The leaves [...] whose names are, or begin with, one of `names`; none: the whole tree.

    Raises UserError for a name that is not there.
    """
    if not names:
        return tree
    leaves = named(tree)
    for name in names:
        if not any(_within(leaf, name) for leaf in leaves):
            there = ", ".join(map(repr, filter(None, leaves))) or "one array"
            raise UserError(
                f"a network is to see {name!r}, but the observation has {there}: name what "
                "is there, or leave policy_sees and value_sees out"
            )
    return {
        leaf: x
        for leaf, x in leaves.items()
        if any(_within(leaf, name) for name in names)
    }


def _within(leaf: str, name: str) -> bool:
    return leaf == name or leaf.startswith(f"{name}.")


def action_mask(tree: PyTree) -> Any:
    """The action mask in an observation, or in its spec; None if there is none."""
    if isinstance(tree, Mapping):
        return tree.get(ACTION_MASK)
    return getattr(tree, ACTION_MASK, None)


def quantities(observation_spec: Any) -> Any:
    """The spec with None for what is not a quantity: choices, booleans, action masks."""

    def quantity(path: tuple[Any, ...], spec: specs.Array) -> specs.Array | None:
        masks = any(_name(entry) == ACTION_MASK for entry in path)
        choice = isinstance(spec, specs.DiscreteArray) or spec.dtype == np.bool_
        return None if masks or choice else spec

    return jax.tree_util.tree_map_with_path(quantity, observation_spec)


def _name(entry: Any) -> Any:
    """Of a part of a path: a key of a dictionary, a field of a NamedTuple."""
    return getattr(entry, "key", getattr(entry, "name", None))


def parts_of(parts: PyTree, tree: PyTree) -> PyTree:
    """The tree with None where `parts` has it."""
    return jax.tree.map(
        lambda part, x: part if part is None else x, parts, tree, is_leaf=_is_none
    )


def each(function: Callable, parts: PyTree, tree: PyTree) -> PyTree:
    """The tree, with `function(part, leaf)` for a leaf whose part is not None."""

    def leaf(part: Any, x: Any) -> Any:
        return x if part is None else function(part, x)

    return jax.tree.map(leaf, parts, tree, is_leaf=_is_none)


def _is_none(x: Any) -> bool:
    return x is None
