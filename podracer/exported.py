"""Acting with a program that `podracer export` wrote: `act = load(FILE)`. Needs JAX alone.

A file is `MAGIC`, the SHA-256 of all that follows, the length of a header (uint64, little
endian), the header (JSON), a `jax.export` program and its weights, one array after the other.
docs/export.md describes the header.
"""

import hashlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from podracer import files
from podracer.errors import UserError

MAGIC = b"podracer program 1\n"
START = len(MAGIC) + 32 + 8  # bytes in front of the header
# What a program may call beside the operations of StableHLO: all of it is XLA's own, and
# reaches nothing outside the program.
CALLS = {
    "cu_threefry2x32_ffi",
    "hip_threefry2x32_ffi",
    "shape_assertion",
    "stablehlo.dynamic_reduce_window",
    "stablehlo.dynamic_top_k",
}


def load(
    file: str | Path, *, batch_size: int | None = None, seed: int = 0
) -> "Policy":
    """The policy in a file: `act = load(FILE); action = act(observation)`.

    Args:
      file: a .stablehlo that `podracer export` wrote.
      batch_size: number of environments that act together; default: one, without a
        batch axis.
      seed: of sampled actions.

    Raises:
      UserError: it cannot be read, is no such file or is damaged, or this version of JAX
        cannot run it.
    """
    header, program, weights = read(file)
    try:
        exported = export.deserialize(bytearray(program))
    except ImportError as error:
        raise UserError(f"{file}: reading it takes: pip install flatbuffers") from error
    except Exception as error:  # noqa: BLE001 - its kinds change with the versions of JAX
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"{file}: JAX {jax.__version__} cannot read this program, which JAX "
            f"{header['jax']} wrote ({reason}): export it with this version"
        ) from error
    check_calls(file, exported)
    run, placed = jax.jit(exported.call), jax.device_put(weights)
    return Policy(header, lambda inputs: run(placed, inputs), batch_size, seed)


def read(file: str | Path) -> tuple[dict[str, Any], bytes, list[np.ndarray]]:
    """The header, the serialized program and the weights. Raises UserError as `load`."""
    try:
        data = files.read(file)
    except OSError as error:
        raise UserError(f"{file}: cannot read: {error.strerror or error}") from error
    if not data.startswith(MAGIC):
        raise UserError(
            f"{file}: not a program that podracer export has written as .stablehlo"
        )
    digest, rest = data[len(MAGIC) : START - 8], data[START - 8 :]
    if len(data) < START or hashlib.sha256(rest).digest() != digest:
        raise UserError(f"{file}: damaged; export the run again")
    end = START + struct.unpack("<Q", rest[:8])[0]
    header = json.loads(data[START:end])
    program, end = data[end : end + header["bytes"]], end + header["bytes"]
    weights = []
    for weight in header["weights"]:
        dtype, shape = jax.numpy.dtype(weight["dtype"]), weight["shape"]
        weights.append(np.frombuffer(data, dtype, int(np.prod(shape)), end))
        weights[-1], end = weights[-1].reshape(shape), end + weights[-1].nbytes
    return header, program, weights


def check_calls(file: str | Path, exported: export.Exported) -> None:
    """Raises UserError where a program calls what is not its own."""
    others = {*re.findall(r"custom_call\W*([\w.]*)", exported.mlir_module())} - CALLS
    if others:
        raise UserError(
            f"{file}: calls {', '.join(sorted(others))}, which is no part of a policy"
        )


class Policy:
    """Acts, and keeps the program's state. `header` says what the program takes and gives."""

    def __init__(
        self,
        header: dict[str, Any],
        run: Callable[[list[Any]], Any],
        batch_size: int | None,
        seed: int,
    ):
        self.header, self._run, self._seed = header, run, seed
        self._single, self._batch_size = batch_size is None, batch_size or 1
        self._state = {
            x["name"]: self._array(x, x["initial"])
            for x in header["inputs"]
            if "initial" in x
        }
        self._steps = 0
        self.reset()

    def reset(self) -> None:
        """The next observation begins new episodes."""
        self._first: Any = True

    def __call__(self, observation: Any, first: Any = None, reward: Any = None) -> Any:
        """The actions [B, ...], a dictionary by their names if there are several.

        Args:
          observation: [B, ...], or [...] without a batch, as the environment has it; a tree
            where the environment's is one.
          first: bool [B], which of them begin an episode; default: none, except in the
            first call and after `reset`.
          reward: float [B], of the step that led to the observation; only programs that
            have it as an input need it.

        Raises UserError for an input that is missing or does not fit.
        """
        self._steps += 1
        begins = self._first if first is None else first
        if reward is None and np.all(begins):
            reward = 0.0
        given = {"first": begins, "reward": reward, **named("observation", observation)}
        given["key"] = np.array([self._seed, self._steps], np.uint32)
        inputs = [
            self._state.get(x["name"], self._array(x, given.get(x["name"])))
            for x in self.header["inputs"]
        ]
        outputs = dict(zip((x["name"] for x in self.header["outputs"]), self._run(inputs)))
        self._first = False
        self._state = {name: outputs.pop(f"next_{name}") for name in self._state}
        actions = {
            name: np.asarray(x)[0] if self._single else np.asarray(x)
            for name, x in outputs.items()
        }
        return actions.get("action", actions)

    def _array(self, of: dict[str, Any], x: Any) -> np.ndarray:
        """x as this input; of one environment or number, it is repeated for the others."""
        name, dtype = of["name"], jax.numpy.dtype(of["dtype"])
        if x is None:
            raise UserError(f"{name} is missing; it must be {of['dtype']} {of['shape']}")
        shape = tuple(self._batch_size if n == "batch" else n for n in of["shape"])
        untyped = np.asarray(x)
        array = untyped.astype(dtype)
        if dtype.kind in "biu" and (array != untyped).any():
            raise UserError(f"{name} is {untyped.dtype} {x!r:.40}; it must be {dtype}")
        is_observation = name.startswith("observation")
        if is_observation and array.shape != (shape[1:] if self._single else shape):
            raise UserError(f"{name} is {array.shape}; it must be {of['shape']}")
        return np.ascontiguousarray(np.broadcast_to(array, shape))


def named(name: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths, as `observation.camera`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        ".".join(filter(None, (name, jax.tree_util.keystr(path, simple=True, separator=".")))): x
        for path, x in leaves
    }
