"""Heads: from features [..., F] to a policy, for any kind of action.

A Gaussian's standard deviation is a parameter of its own, or depends on the features as its
mean does; `exp` or `softplus` keeps it positive, `bounded` within bounds.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer.errors import UserError, check_range, check_ranges
from podracer.networks.policies import (
    Categorical,
    Gaussian,
    MultiCategorical,
    Policy,
    TanhGaussian,
)
from podracer.networks.torsos import dense

BOUNDS = "min_deviation", "max_deviation"


@dataclasses.dataclass(frozen=True)
class Config:
    """The policy head; all but init_scale is about continuous actions."""

    init_scale: float = 1 / 3
    """variance of the initial outputs, for features of variance 1; if small, the initial
    policy is nearly uniform"""
    mean: Literal["linear", "tanh"] = "linear"
    """output of the mean; tanh bounds it to (-1, 1), but not the actions around it"""
    deviation: Literal["independent", "dependent"] = "independent"
    """standard deviation: a parameter independent of the state, or a network output"""
    positive: Literal["exp", "softplus", "bounded"] = "exp"
    """function that makes the standard deviation positive; bounded keeps it between
    min_deviation and max_deviation (its logarithm is a scaled sigmoid)"""
    initial_deviation: float = 1.0
    """initial standard deviation"""
    min_deviation: float = 0.007
    """lower bound of the standard deviation; for positive bounded"""
    max_deviation: float = 7.4
    """upper bound of the standard deviation; for positive bounded"""
    squash: bool = False
    """apply tanh to the Gaussian's samples: actions are within (-1, 1), never clipped"""

    def __post_init__(self):
        check_range("init_scale", self.init_scale, 1e-9)
        check_range("initial_deviation", self.initial_deviation, 1e-6)
        check_ranges(self, 1e-6, math.inf, *BOUNDS)
        if self.positive == "bounded":
            if not self.min_deviation < self.initial_deviation < self.max_deviation:
                raise UserError(
                    f"initial_deviation is {self.initial_deviation}; with positive bounded "
                    f"it must be between min_deviation ({self.min_deviation}) and "
                    f"max_deviation ({self.max_deviation})"
                )
        else:
            others = {x.name for x in dataclasses.fields(self)} - {*BOUNDS}
            check_unused(self, f"positive {self.positive}", *others)
        if self.squash and self.mean == "tanh":
            raise UserError(
                "mean is tanh and squash is on: squashed twice, an action could not "
                "reach its bounds; choose one of them"
            )


def check_unused(config: Config, who: str, *used: str) -> None:
    """Raises UserError for a field other than its default that `who`, which uses no others
    than `used`, would ignore."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in used and value != field.default:
            raise UserError(
                f"head.{field.name} is {value}, which has no effect on {who}: leave it out"
            )


class Actions(NamedTuple):
    """The parts of an action, a tree, and what each of them is, as `kind_of` says."""

    structure: Any  # jax.tree.structure
    parts: tuple[tuple[str, tuple[int, ...]], ...]


def actions_of(action_spec: Any) -> Actions:
    """What an action consists of. Raises UserError as `kind_of`."""
    parts, structure = jax.tree.flatten(action_spec)
    if not parts:
        kind_of(action_spec)  # which says what an action may be
    return Actions(structure, tuple(map(kind_of, parts)))


class PolicyHead(nn.Module):
    """features [..., F] -> a policy over the actions that `kind_of` describes."""

    kind: str
    sizes: tuple[int, ...]
    config: Config

    @nn.compact
    def __call__(self, features: jax.Array) -> Policy:
        init = scaled_init(self.config.init_scale)
        outputs = dense(sum(self.sizes), kernel_init=init)(features)
        if self.kind == "one of":
            return Categorical(outputs)
        if self.kind == "several":
            ends = np.cumsum(self.sizes)[:-1]
            parts = jnp.split(outputs, ends, axis=-1)
            return MultiCategorical(tuple(map(Categorical, parts)))
        mean = jnp.tanh(outputs) if self.config.mean == "tanh" else outputs
        policy = TanhGaussian if self.config.squash else Gaussian
        return policy(mean, self.deviation(features, init))

    def deviation(self, features: jax.Array, init: Callable) -> jax.Array:
        function, inverse = positive_function(self.config)
        start = nn.initializers.constant(inverse(self.config.initial_deviation))
        if self.config.deviation == "dependent":
            layer = dense(
                *self.sizes, kernel_init=init, bias_init=start, name="deviation"
            )
            return function(layer(features))
        value = function(self.param("deviation", start, self.sizes))
        return jnp.broadcast_to(value, (*features.shape[:-1], *self.sizes))


def scaled_init(scale: float) -> nn.initializers.Initializer:
    """Weights whose outputs have this variance, for features of variance 1."""
    return nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")


def positive_function(config: Config) -> tuple[Callable, Callable]:
    """What makes a number the standard deviation, and its inverse."""
    if config.positive == "exp":
        return jnp.exp, math.log
    if config.positive == "softplus":
        # Not log(expm1(x)), which overflows from 710 on.
        return jax.nn.softplus, lambda x: x + math.log(-math.expm1(-x))
    low, high = math.log(config.min_deviation), math.log(config.max_deviation)

    def bounded(x: jax.Array) -> jax.Array:
        return jnp.exp(low + (high - low) * jax.nn.sigmoid(x))

    def inverse(deviation: float) -> float:
        return math.log((math.log(deviation) - low) / (high - math.log(deviation)))

    return bounded, inverse


def kind_of(action_spec: Any) -> tuple[str, tuple[int, ...]]:
    """The kind of action, and the number of network outputs for each part of it.

    `one of` n (a DiscreteArray), `several` choices (a BoundedArray [K] of integers from
    0), or `numbers` (a BoundedArray [D] of floats). Raises UserError for anything else.
    """
    if isinstance(action_spec, specs.DiscreteArray):
        return "one of", (int(action_spec.num_values),)
    shape = action_spec.shape if isinstance(action_spec, specs.BoundedArray) else ()
    if len(shape) == 1 and shape[0]:
        if np.issubdtype(action_spec.dtype, np.floating):
            return "numbers", shape
        whole = np.issubdtype(action_spec.dtype, np.integer)
        if whole and not np.any(action_spec.minimum):
            highest = np.broadcast_to(action_spec.maximum, shape)
            return "several", tuple(int(x) + 1 for x in highest)
    raise UserError(
        f"action_spec is {_one_line(action_spec)}; a policy is for one choice (a dm_env "
        "DiscreteArray), several (a BoundedArray [K] of integers from 0) or numbers (a "
        "BoundedArray [D] of floats), or for a tree of these: wrap the environment so that "
        "it has one"
    )


def number_of_actions(action_spec: Any, who: str) -> int:
    """The number of actions to choose one from. Raises UserError for other actions; `who`
    can choose no other."""
    kind, sizes = kind_of(action_spec)
    if kind != "one of":
        raise UserError(
            f"action_spec is {_one_line(action_spec)}; {who} is for discrete actions, one choice (a "
            "dm_env DiscreteArray): use another agent, such as ppo"
        )
    return sizes[0]


def _one_line(spec: Any) -> str:
    """A spec, whose bounds may be long, in one line."""
    return " ".join(str(spec).split())
