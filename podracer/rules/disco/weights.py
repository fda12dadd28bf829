"""The parameters of Disco103's meta-network, and the published file that holds them.

The file is `disco_103.npz` of github.com/google-deepmind/disco_rl; it is not part of this
repository, see docs/update-rules.md.
"""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Key
from podracer.errors import UserError
from podracer.networks import torsos
from podracer.rules import files

WAY_OUT = "give disco_103.npz, see docs/update-rules.md"
# What NumPy raises for data that is no such file, besides the errors of the two libraries
# that it reads with.
BROKEN = OSError, EOFError, ValueError, AttributeError, TypeError, NotImplementedError


class Linear(NamedTuple):
    """A linear layer."""

    w: Any  # [inputs, outputs]
    b: Any  # [outputs]


class Encoder(NamedTuple):
    """What makes vectors of a trajectory; there are two, each with parameters of its own."""

    y: tuple[Linear, Linear]
    z: tuple[Linear, Linear]
    actions: tuple[Linear, Linear]


class Lifetime(NamedTuple):
    """The LSTM that steps once per update."""

    encoder: Encoder
    pool: Linear
    lstm: Linear


class Weights(NamedTuple):
    """All 754,778 parameters."""

    encoder: Encoder
    backward: Linear  # the LSTM that runs backwards in time
    gate: Linear  # of the lifetime's hidden vector
    embedding: Linear
    y: Linear
    z: Linear
    policy_block: Linear
    policy: Linear
    lifetime: Lifetime


class FileLayer(NamedTuple):
    """A layer in the file: arrays `name/w` of this shape and `name/b`."""

    name: str
    shape: tuple[int, ...]  # (..., inputs, outputs); kernels of size 1 lead


def _encoder(room: str) -> Encoder:
    def network(name: str) -> tuple[FileLayer, FileLayer]:
        return (
            FileLayer(f"{room}{name}/~/linear_0", (600, 16)),
            FileLayer(f"{room}{name}/~/linear_1", (16, 1)),
        )

    actions = (
        FileLayer(f"{room}sequential/conv1_d", (1, 18, 16)),
        FileLayer(f"{room}sequential/conv1_d_1", (1, 32, 2)),
    )
    return Encoder(network("mlp"), network("mlp_1"), actions)


_LIFETIME = "lstm/~/meta_lstm/~unroll/"
FILE_LAYERS = Weights(
    encoder=_encoder("lstm/"),
    backward=FileLayer("lstm/lstm/linear", (283, 1024)),
    gate=FileLayer("lstm/linear", (128, 256)),
    embedding=FileLayer("lstm/linear_1", (256, 1)),
    y=FileLayer("lstm/linear_2", (256, 600)),
    z=FileLayer("lstm/linear_3", (256, 600)),
    policy_block=FileLayer("lstm/sequential_1/conv1_d", (1, 516, 16)),
    policy=FileLayer("lstm/linear_4", (16, 1)),
    lifetime=Lifetime(
        _encoder(_LIFETIME),
        pool=FileLayer(f"{_LIFETIME}mlp_2/~/linear_0", (29, 16)),
        lstm=FileLayer(f"{_LIFETIME}lstm/linear", (144, 512)),
    ),
)
LAYERS: list[FileLayer] = jax.tree.leaves(
    FILE_LAYERS, is_leaf=lambda x: isinstance(x, FileLayer)
)
SHAPES = {f"{name}/w": shape for name, shape in LAYERS}
SHAPES |= {f"{name}/b": shape[-1:] for name, shape in LAYERS}


def load(path: str | Path) -> Weights:
    """The parameters in a file, as NumPy arrays.

    Raises UserError where there is no such file, it is damaged, or it holds anything else.
    """
    data = io.BytesIO(files.read(path))
    try:
        file = np.load(data)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise TypeError("it holds a single array")
        arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, zlib.error, *BROKEN) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"{path}: no .npz file, or damaged: {reason}") from error
    check(path, arrays)
    return of_arrays(arrays)


def check(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises UserError unless these arrays have the names and shapes of Disco103."""
    refused = f"{path}: not the rule Disco103"
    for name in [*SHAPES, *arrays]:
        if name not in arrays or name not in SHAPES:
            has = "has no" if name in SHAPES else "has an"
            raise UserError(f"{refused}, it {has} array {name}; {WAY_OUT}")
        x = arrays[name]
        if x.shape != SHAPES[name] or x.dtype != np.float32:
            raise UserError(
                f"{refused}, its {name} is {x.dtype}{list(x.shape)} instead of "
                f"float32{list(SHAPES[name])}; {WAY_OUT}"
            )
        if not np.isfinite(x).all():
            raise UserError(f"{refused}, its {name} is not finite; {WAY_OUT}")


def of_arrays(arrays: Mapping[str, Any]) -> Weights:
    """The parameters from arrays by name."""

    def linear(layer: FileLayer) -> Linear:
        w = arrays[f"{layer.name}/w"].reshape(layer.shape[-2:])
        return Linear(w, arrays[f"{layer.name}/b"])

    return jax.tree.map(linear, FILE_LAYERS, is_leaf=lambda x: isinstance(x, FileLayer))


def init(key: Key) -> Weights:
    """Random parameters: those of a rule that has not learned anything yet."""
    arrays = {f"{name}/b": jnp.zeros(shape[-1]) for name, shape in LAYERS}
    keys = jax.random.split(key, len(LAYERS))
    for (name, shape), one in zip(LAYERS, keys, strict=True):
        arrays[f"{name}/w"] = torsos.INITS["truncated"](one, shape)
    return of_arrays(arrays)
