"""Rule files: what is written is read, and anything else is one line."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from podracer.errors import UserError
from podracer.rules import files, lpg

pytestmark = pytest.mark.core

SIZES = lpg.Sizes(prediction_size=3, memory_size=2, embedding_size=2)


def weights_of(sizes):
    shapes = jax.eval_shape(lpg.make_rule(lpg.Config(), sizes).init, jax.random.key(0))
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: random.normal(size=x.shape).astype("f4"), shapes)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rule.safetensors"
    files.save_rule(path, "lpg", SIZES, weights_of(SIZES), {"steps": 7})
    return path


def test_a_rule_is_read_as_it_was_written(path):
    config, weights, about = files.load_rule(path, "lpg", lpg.Sizes())
    assert (config, about) == (SIZES, {"steps": 7})
    jax.tree.map(np.testing.assert_array_equal, weights, weights_of(SIZES))
    files.check_shapes(path, weights, weights_of(SIZES))
    assert sorted(x.name for x in path.parent.iterdir()) == ["rule.safetensors"]


def test_another_architecture_is_refused(path):
    other = lpg.Sizes(prediction_size=3, memory_size=4, embedding_size=2)
    with pytest.raises(
        UserError, match=r"lstm\.hf\.bias is \(2,\) in the file and \(4,"
    ):
        files.check_shapes(path, weights_of(SIZES), weights_of(other))
    less = {"params": weights_of(SIZES)["params"] | {"pi_hat": {}}}
    with pytest.raises(UserError, match=r"pi_hat\.bias is missing in the file"):
        files.check_shapes(path, less, weights_of(SIZES))


def cut(data):
    return data[: len(data) // 2]


def changed(word, other):
    def change(data):
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        header["__metadata__"] = {
            name: x.replace(word, other) for name, x in header["__metadata__"].items()
        }
        header = json.dumps(header).encode()
        return len(header).to_bytes(8, "little") + header + data[8 + size :]

    return change


def with_tensors(dtype=np.float32, **others):
    """Ones in place of its weights, and other tensors beside them."""

    def change(data):
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        ones = {f"params.{x}": np.ones(2, dtype) for x in ("a", "b")}
        return safetensors.numpy.save(ones | others, metadata)

    return change


def bfloat16(data):
    """A dtype that NumPy does not have."""
    data = with_tensors(np.float16)(data)
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].replace(b'"F16"', b'"BF16"')
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def nested(data):
    metadata = {"rule": "[" * 200_000}
    return safetensors.numpy.save({"params": np.ones(2, np.float32)}, metadata)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (cut, "no rule file, or damaged"),
        (lambda data: b"", "no rule file, or damaged"),
        (lambda data: b"\x93NUMPY" + data, "no rule file, or damaged"),
        (changed("lpg", "disco"), "holds a rule of kind 'disco'; it must be of kind"),
        (changed("kind", "sort"), "holds no rule; it must be of kind 'lpg'"),
        (changed("memory_size", "colour"), "colour is unknown to this version"),
        (changed(": 3,", ": -3,"), "prediction_size is -3; it must be from 1 to"),
        *(
            (
                changed(f'"{name}": 2', f'"{name}": {2**31}'),
                f"{name} is {2**31}; it must be",
            )
            for name in ("memory_size", "embedding_size")
        ),
        (changed("{", ""), "no rule file, or damaged"),
        (changed("config", "other"), "the configuration is None; it must be an object"),
        (nested, "no rule file, or damaged"),
        (
            with_tensors(params=np.ones(2, np.float32)),
            r"params is an array but params\.[ab] is inside it",
        ),
        *(
            (change, rf"params\.a is {dtype}; weights must be F32, F16, F64")
            for dtype, change in {
                "BF16": bfloat16,
                "I32": with_tensors(np.int32),
                "BOOL": with_tensors(bool),
                "U16": with_tensors(np.uint16),
            }.items()
        ),
        *(
            (with_tensors(b=np.array(x)), "b is not finite: give another")
            for x in (np.float32("nan"), np.float32("-inf"), np.float64(1e300))
        ),
    ],
)
def test_what_is_no_rule_is_one_line(path, change, line):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=line) as error:
        files.load_rule(path, "lpg", lpg.Sizes())
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_a_missing_file_is_one_line(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="cannot read the rule file"):
            files.load_rule(path, "lpg", lpg.Sizes())


def test_a_checksum_is_of_the_content(path):
    before = files.checksum(path)
    files.check_checksum(path, before)
    files.check_checksum(path, "")
    files.save_rule(path, "lpg", SIZES, weights_of(SIZES), {"steps": 8})
    with pytest.raises(UserError, match=f"has changed: .* began with {before}"):
        files.check_checksum(path, before)
