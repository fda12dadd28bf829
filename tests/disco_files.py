"""Files like the published one of Disco103, with random weights, for tests without it."""

import functools
import os
import pathlib
import tempfile

import numpy as np

from podracer.rules.disco import weights


def random_arrays(seed=0):
    """Arrays by name: those of a rule that has learned nothing."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for name, shape in weights.SHAPES.items():
        inputs = shape[-2] if len(shape) > 1 else 100.0
        normal = generator.standard_normal(shape) / np.sqrt(inputs)
        arrays[name] = normal.astype(np.float32)
    return arrays


@functools.cache
def random_rule(seed=0):
    """A file of such arrays, for as long as the tests run."""
    folder = tempfile.mkdtemp(dir=os.environ["PODRACER_TESTS"])
    path = pathlib.Path(folder, "rule.npz")
    np.savez(path, **random_arrays(seed))
    return path
