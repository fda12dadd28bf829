"""Rows are written where they belong, whether environments step together or not."""

import chex
import jax
import jax.numpy as jnp
import pytest

from podracer import kernels
from podracer.kernels import rows as of_rows


@pytest.mark.parametrize("place", [[2, 2, 2], [0, 3, 1], [3, 0, 3]])
@pytest.mark.parametrize("platform", ["tpu", "default"])
def test_rows_are_written_at_their_places(place, platform, monkeypatch):
    monkeypatch.setattr(of_rows, "by_platform", lambda *x, **known: known[platform](*x))
    rows = {"a": jnp.zeros((3, 4)), "b": jnp.zeros((3, 4, 2))}
    row = {"a": jnp.arange(1.0, 4.0), "b": jnp.arange(1.0, 7.0).reshape(3, 2)}
    written = jax.jit(lambda *x: kernels.write_rows(*x))(rows, row, jnp.array(place))
    for b, at in enumerate(place):
        rows = jax.tree.map(
            lambda rows, x, b=b, at=at: rows.at[b, at].set(x[b]), rows, row
        )
    chex.assert_trees_all_equal(written, rows)
