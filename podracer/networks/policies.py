"""Policies: distributions over actions, as plain data with methods.

Each is a NamedTuple of its parameters, hence a pytree: a behaviour policy is stored in
trajectories and compared with the target policy. `...` are any leading axes, as in [T, B].
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import PyTree
from podracer.observations import named

EDGE = 1.0 - 1e-6  # limit of squashed actions: at 1 the inverse of tanh is infinite
# For means over N(0, 1) by the trapezoidal rule.
_NODES = np.linspace(-5.0, 5.0, 41)
_WEIGHTS = np.exp(-np.square(_NODES) / 2)


class Categorical(NamedTuple):
    """One of A choices; an action is int32 [...]. A logit of -inf forbids its action."""

    logits: jax.Array  # [..., A]

    def sample(self, keys: jax.Array) -> jax.Array:
        """An action for each element of the leading axis [B], with its own key."""
        return jax.vmap(jax.random.categorical)(keys, self.logits)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        # A sum over a mask: the gradient of an index is a scatter, which is slow.
        taken = jax.nn.one_hot(action, self.logits.shape[-1], dtype=bool)
        return jnp.sum(jnp.where(taken, jax.nn.log_softmax(self.logits), 0.0), -1)

    def entropy(self) -> jax.Array:
        log_p = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_p) * _finite(log_p, log_p), -1)

    def kl(self, other: "Categorical") -> jax.Array:
        """KL(self || other)."""
        log_p, log_q = (jax.nn.log_softmax(x.logits) for x in (self, other))
        distance = _finite(log_p, log_p) - _finite(log_p, log_q)
        return jnp.sum(jnp.exp(log_p) * distance, -1)


class MultiCategorical(NamedTuple):
    """K independent choices at once; an action is int32 [..., K]."""

    choices: tuple[Categorical, ...]  # K

    def sample(self, keys: jax.Array) -> jax.Array:
        keys = jax.vmap(jax.random.split, (0, None), 1)(keys, len(self.choices))
        samples = [x.sample(key) for x, key in zip(self.choices, keys, strict=True)]
        return jnp.stack(samples, -1)

    def mode(self) -> jax.Array:
        return jnp.stack([x.mode() for x in self.choices], -1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return sum(x.log_prob(action[..., k]) for k, x in enumerate(self.choices))

    def entropy(self) -> jax.Array:
        return sum(x.entropy() for x in self.choices)

    def kl(self, other: "MultiCategorical") -> jax.Array:
        return sum(x.kl(y) for x, y in zip(self.choices, other.choices, strict=True))


class Gaussian(NamedTuple):
    """Independent normal variables; an action is float32 [..., D], unbounded."""

    mean: jax.Array  # [..., D]
    deviation: jax.Array  # [..., D], the standard deviation; positive

    def sample(self, keys: jax.Array) -> jax.Array:
        noise = jax.vmap(lambda key: jax.random.normal(key, self.mean.shape[1:]))(keys)
        return self.mean + self.deviation * noise

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.sum(
            jax.scipy.stats.norm.logpdf(action, self.mean, self.deviation), -1
        )

    def entropy(self) -> jax.Array:
        constant = 0.5 * math.log(2.0 * math.pi * math.e)
        return jnp.sum(jnp.log(self.deviation) + constant, -1)

    def kl(self, other: "Gaussian") -> jax.Array:
        """KL(self || other)."""
        ratio = self.deviation / other.deviation
        distance = (self.mean - other.mean) / other.deviation
        squares = jnp.square(ratio) + jnp.square(distance)
        return 0.5 * jnp.sum(squares - 2.0 * jnp.log(ratio) - 1.0, -1)


class TanhGaussian(NamedTuple):
    """tanh of independent normal variables; an action is float32 [..., D] within (-1, 1)."""

    mean: jax.Array  # [..., D], before tanh
    deviation: jax.Array  # [..., D], the standard deviation before tanh; positive

    def sample(self, keys: jax.Array) -> jax.Array:
        return _squash(Gaussian(*self).sample(keys))

    def reparametrized(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """An action [..., D] and its log-probability [...], differentiable in the policy.

        The probability is that of the value before tanh, which the action forgets near its
        bounds (soft actor-critic, arXiv:1801.01290, appendix C). `noise` [..., D] is of a
        standard normal distribution.
        """
        before = self.mean + self.deviation * noise
        log_prob = jax.scipy.stats.norm.logpdf(noise) - jnp.log(self.deviation)
        return _squash(before), jnp.sum(log_prob - _log_slope(before), -1)

    def mode(self) -> jax.Array:
        return _squash(self.mean)

    def log_prob(self, action: jax.Array) -> jax.Array:
        before = jnp.arctanh(jnp.clip(action, -EDGE, EDGE))
        stretch = jnp.sum(_log_slope(before), -1)
        return Gaussian(*self).log_prob(before) - stretch

    def entropy(self) -> jax.Array:
        """By the trapezoidal rule: there is no closed form."""
        nodes = self.deviation[..., None] @ jnp.float32(_NODES)[None]  # [..., D, 41]
        slopes = _log_slope(jnp.expand_dims(self.mean, -1) + nodes)
        stretch = slopes @ jnp.float32(_WEIGHTS / _WEIGHTS.sum())
        return Gaussian(*self).entropy() + jnp.sum(stretch, -1)

    def kl(self, other: "TanhGaussian") -> jax.Array:
        """KL(self || other), which a bijection of both does not change."""
        return Gaussian(*self).kl(Gaussian(*other))


Part = Categorical | MultiCategorical | Gaussian | TanhGaussian


class Composite(NamedTuple):
    """Independent parts of an action; an action is a tree [...] like that of the parts."""

    parts: PyTree  # of policies

    def sample(self, keys: jax.Array) -> PyTree:
        parts, structure = jax.tree.flatten(self.parts, is_part)
        keys = jax.vmap(jax.random.split, (0, None), 1)(keys, len(parts))
        return structure.unflatten(
            x.sample(k) for x, k in zip(parts, keys, strict=True)
        )

    def mode(self) -> PyTree:
        return self._each(lambda part: part.mode())

    def log_prob(self, action: PyTree) -> jax.Array:
        return self._total(lambda part, x: part.log_prob(x), action)

    def entropy(self) -> jax.Array:
        return self._total(lambda part: part.entropy())

    def kl(self, other: "Composite") -> jax.Array:
        """KL(self || other)."""
        return self._total(lambda part, x: part.kl(x), other.parts)

    def _each(self, function: Callable, *trees: PyTree) -> PyTree:
        return jax.tree.map(function, self.parts, *trees, is_leaf=is_part)

    def _total(self, function: Callable, *trees: PyTree) -> jax.Array:
        return sum(jax.tree.leaves(self._each(function, *trees)))


Policy = Part | Composite


def is_part(policy: Any) -> bool:
    return isinstance(policy, Part)


def masked(policy: Policy, allowed: Mapping[str, jax.Array]) -> Policy:
    """The policy [...], without what is forbidden.

    Args:
      policy: over an action.
      allowed: by the name of an action's part (empty, where it has none): bool
        [..., A_1 + ... + A_K], of its K choices; a part that is not there is left as it is.
    """
    if isinstance(policy, Composite):
        parts = named(policy.parts, is_part)
        return Composite(
            jax.tree.unflatten(
                jax.tree.structure(policy.parts, is_part),
                [_masked(part, allowed.get(name)) for name, part in parts.items()],
            )
        )
    return _masked(policy, allowed.get(""))


def _masked(part: Part, allowed: jax.Array | None) -> Part:
    if allowed is None:
        return part
    if isinstance(part, Categorical):
        return Categorical(jnp.where(allowed, part.logits, -jnp.inf))
    ends = np.cumsum([x.logits.shape[-1] for x in part.choices])[:-1]
    masks = jnp.split(allowed, ends, axis=-1)
    return MultiCategorical(tuple(map(_masked, part.choices, masks)))


def _finite(log_p: jax.Array, x: jax.Array) -> jax.Array:
    """x, but 0 where the action is forbidden: 0 times infinity would be NaN."""
    return jnp.where(log_p == -jnp.inf, 0.0, x)


def _squash(x: jax.Array) -> jax.Array:
    return jnp.clip(jnp.tanh(x), -EDGE, EDGE)


def _log_slope(x: jax.Array) -> jax.Array:
    """log(1 - tanh(x)^2), without cancellation."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
