"""The rule's file: what is read of it, and what is refused."""

import io
import re

import jax
import numpy as np
import pytest

from podracer.errors import UserError
from podracer.rules.disco import weights
from tests.disco_files import random_arrays, random_rule
from tests.podracer.rules.disco import shared_data

pytestmark = pytest.mark.core


def test_the_published_file_has_these_arrays():
    loaded = weights.load(shared_data.path("disco_103.npz"))
    assert len(jax.tree.leaves(loaded)) == 42
    assert sum(x.size for x in jax.tree.leaves(loaded)) == 754_778


def test_every_array_is_read_once_and_has_its_place():
    loaded, arrays = weights.load(random_rule()), random_arrays()
    sums = sorted(float(x.sum()) for x in jax.tree.leaves(loaded))
    assert sums == sorted(float(x.sum()) for x in arrays.values())
    np.testing.assert_array_equal(loaded.z.b, arrays["lstm/linear_3/b"])
    name = "lstm/~/meta_lstm/~unroll/sequential/conv1_d_1/w"
    np.testing.assert_array_equal(loaded.lifetime.encoder.actions[1].w, arrays[name][0])
    shapes = jax.eval_shape(weights.init, jax.random.key(0))
    assert jax.tree.map(np.shape, loaded) == jax.tree.map(np.shape, shapes)


def cut(data):
    return data[: len(data) // 2]


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, flipped, lambda data: b"", lambda data: b"{}"])
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "rule.npz"
    path.write_bytes(damage(random_rule().read_bytes()))
    refused(path, "no .npz file, or damaged")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lstm/linear_3/w": None}, "it has no array lstm/linear_3/w; give disco_103"),
        ({"more": np.zeros(2)}, "it has an array more; give disco_103"),
        (
            {"lstm/linear_1/w": np.zeros((256, 2), np.float32)},
            r"its lstm/linear_1/w is float32\[256, 2\] instead of float32\[256, 1\]",
        ),
        ({"lstm/linear_1/b": np.zeros(1)}, r"is float64\[1\] instead of float32\[1\]"),
        ({"lstm/linear_1/b": np.full(1, np.nan, np.float32)}, "is not finite"),
        ({"lstm/linear_1/b": np.array([{}], object)}, "no .npz file, or damaged"),
    ],
)
def test_another_rule_is_refused(tmp_path, change, message):
    arrays = {k: x for k, x in (random_arrays() | change).items() if x is not None}
    np.savez(tmp_path / "rule.npz", **arrays)
    refused(tmp_path / "rule.npz", message)


def test_a_single_array_is_refused(tmp_path):
    with io.BytesIO() as file:
        np.save(file, np.zeros(3))
        (tmp_path / "rule.npz").write_bytes(file.getvalue())
    refused(tmp_path / "rule.npz", "no .npz file, or damaged")


def test_no_file_is_refused(tmp_path):
    refused(tmp_path / "rule.npz", "No such file")


def refused(path, message):
    with pytest.raises(
        UserError, match=f"^{re.escape(str(path))}: .*{message}"
    ) as info:
        weights.load(path)
    assert "\n" not in str(info.value)
