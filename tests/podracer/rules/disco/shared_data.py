"""The rule's weights and test vectors, beside the checkout; see their NOTICE."""

import pathlib

import dm_env
import jax.numpy as jnp
import numpy as np
import pytest

import podracer

FOLDER = pathlib.Path(podracer.__file__).parents[2] / "shared" / "data"


def path(name):
    """The path of a file; the test is skipped where there is none."""
    if not (FOLDER / name).exists():
        pytest.skip(f"{FOLDER / name} is absent: it is no part of this repository")
    return FOLDER / name


def vectors(*prefixes):
    """For each prefix its arrays, by their names without it."""
    with np.load(path("disco_vectors.npz")) as file:
        arrays = {name: file[name] for name in file.files}
    return [
        {k.removeprefix(p): v for k, v in arrays.items() if k.startswith(p)}
        for p in prefixes
    ]


def timesteps(given, observation):
    """The vectors' timesteps: LAST where the discount is 0."""
    discount = jnp.array(given["discounts_ts"])
    last, mid = map(int, (dm_env.StepType.LAST, dm_env.StepType.MID))
    step_type = jnp.where(discount == 0.0, last, mid).astype(jnp.int32)
    return dm_env.TimeStep(
        step_type, jnp.array(given["rewards_ts"]), discount, observation
    )


def assert_close(got, expected, name, most=1e-3):
    """Within the tolerance of the vectors: max |error| < most * max |expected|."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape, name
    error, size = np.abs(got - expected).max(), np.abs(expected).max()
    assert error <= most * size, f"{name}: {error:.2g} of {size:.2g}"
