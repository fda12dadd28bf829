"""Scalars as categorical distributions over transformed bins (MuZero, arXiv:1911.08265).

Returns are first compressed by the signed hyperbolic transform (Pohlen et al. 2018,
arXiv:1805.11593), then split between the two bins around them.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

EPSILON = 1e-3  # slope of the transform far from 0
FEWEST = 21  # bins
MOST = 601  # bins, unless they would be wider than a transformed unit; as in the paper


class Support(NamedTuple):
    """Bins at equal distances from -limit to limit, in transformed units."""

    max_return: float  # largest absolute scalar that it represents
    limit: int
    bins: int  # odd, so that one of them is at 0

    def points(self) -> jax.Array:
        """float32 [bins], transformed units."""
        return jnp.linspace(-self.limit, self.limit, self.bins, dtype=jnp.float32)

    def distribution(self, x: jax.Array) -> jax.Array:
        """Probabilities [..., bins] of scalars [...], on two neighbouring bins each.

        Their mean is the transformed scalar; scalars beyond the ends are clipped.
        """
        width = 2.0 * self.limit / (self.bins - 1)
        y = jnp.clip(transform(x), -self.limit, self.limit)[..., None]
        points = self.points().reshape((1,) * x.ndim + (-1,))
        return jax.nn.relu(1.0 - jnp.abs(y - points) / width)

    def mean(self, logits: jax.Array) -> jax.Array:
        """The scalars [...] that logits [..., bins] stand for."""
        probabilities = jax.nn.softmax(logits)
        return inverse(jnp.dot(probabilities, self.points(), precision="highest"))

    def cross_entropy(self, logits: jax.Array, x: jax.Array) -> jax.Array:
        """[...] of the prediction `logits` [..., bins] for scalars [...]."""
        return -jnp.sum(self.distribution(x) * jax.nn.log_softmax(logits), -1)


def make_support(max_return: float) -> Support:
    """The bins for scalars within +-max_return: four for each transformed unit.

    At least `FEWEST`, and at most `MOST` unless these would be wider than a unit: the paper's
    are 601 of one unit, which reach to 58,705.
    """
    root = math.sqrt(max_return + 1.0) - 1.0
    limit = max(1, math.ceil(root + EPSILON * max_return - 1e-6))
    bins = max(FEWEST, min(8 * limit + 1, MOST), 2 * limit + 1)
    return Support(max_return, limit, bins)


def transform(x: jax.Array) -> jax.Array:
    """sign(x) (sqrt(|x| + 1) - 1) + 0.001 x."""
    root = jnp.sqrt(jnp.abs(x) + 1.0)
    # Not root - 1, which loses digits near 0.
    return x / (root + 1.0) + EPSILON * x


def inverse(y: jax.Array) -> jax.Array:
    """The scalars whose transform is `y`.

    The textbook's form subtracts numbers near 500, and errs by 1e-4 near 0 in float32;
    this one, of the same quadratic equation, has no such difference.
    """
    c = 1.0 + EPSILON + jnp.abs(y)
    root = 2.0 * c / (1.0 + jnp.sqrt(1.0 + 4.0 * EPSILON * c))  # sqrt(|x| + 1)
    return y * (root + 1.0) / (1.0 + EPSILON * (root + 1.0))
