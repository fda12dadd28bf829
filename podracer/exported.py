"""Acting with a program that `podracer export` wrote: `act = load(FILE)`. Needs JAX alone.

A file is `MAGIC`, the SHA-256 of all that follows, the length of a header (uint64, little
endian), the header (JSON), a `jax.export` program and its weights, one array after the other.
docs/export.md describes the header.
"""

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from podracer import files
from podracer.errors import UserError, check_at_least_one, check_seed

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


def load(file: str | Path, *, batch_size: int | None = None, seed: int = 0) -> "Policy":
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
    check_at_least_one(batch_size=batch_size)
    check_seed(seed)
    header, program, weights = read(file)
    try:
        exported = export.deserialize(bytearray(program))
    except ImportError as error:
        raise UserError(f"{file}: reading it takes: pip install flatbuffers") from error
    except Exception as error:  # whose kinds change with JAX's versions
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"{file}: JAX {jax.__version__} cannot read this program, which JAX "
            f"{header.get('jax')} wrote ({reason}): export it with this version"
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
    if hashlib.sha256(rest).digest() != digest:
        raise UserError(f"{file}: damaged; export the run again")
    try:
        return parsed(data)
    except (KeyError, RecursionError, TypeError, ValueError, struct.error) as error:
        raise UserError(f"{file}: forged, its header is of no program") from error


def parsed(data: bytes) -> tuple[dict[str, Any], bytes, list[np.ndarray]]:
    """The parts of a file of this format; some exception where it is none."""
    end = START + struct.unpack("<Q", data[START - 8 : START])[0]
    header = json.loads(data[START:end])
    program, end = data[end : end + header["bytes"]], end + header["bytes"]
    for x in [*header["inputs"], *header["outputs"]]:
        (
            x["name"],
            np.dtype(x["dtype"]),
            math.prod(n for n in x["shape"] if n != "batch"),
        )
    weights = []
    for weight in header["weights"]:
        shape = weight["shape"]
        flat = np.frombuffer(data, weight["dtype"], math.prod(shape), end)
        weights.append(flat.reshape(shape))
        end += flat.nbytes
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
            x["name"]: np.broadcast_to(
                np.array(x["initial"], x["dtype"]), self._shape(x)
            )
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
        first = self._first if first is None else first
        if reward is None and np.all(first):
            reward = 0.0
        key = np.array([self._seed, self._steps + 1], np.uint32)
        given = {"key": key, "first": first, "reward": reward}
        given |= {"observation": observation} | named("observation", observation)
        inputs = [
            self._state[x["name"]] if "initial" in x else self._array(x, given)
            for x in self.header["inputs"]
        ]
        names = [x["name"] for x in self.header["outputs"]]
        outputs = dict(zip(names, self._run(inputs), strict=True))
        self._state = {x: outputs.pop(f"next_{x}") for x in self._state}
        self._first, self._steps = False, self._steps + 1
        actions = {x: np.asarray(value) for x, value in outputs.items()}
        if self._single:
            actions = {x: value[0] for x, value in actions.items()}
        return actions.get("action", actions)

    def _shape(self, of: dict[str, Any]) -> tuple[int, ...]:
        return tuple(self._batch_size if n == "batch" else n for n in of["shape"])

    def _array(self, of: dict[str, Any], given: dict[str, Any]) -> np.ndarray:
        """What is given for an input, with a batch axis and of its type."""
        name, dtype, shape = of["name"], of["dtype"], self._shape(of)
        if given.get(name) is None:
            raise UserError(f"{name} is missing; it must be {dtype} {shape}")
        x = np.asarray(given[name])
        if name in ("first", "reward") and x.ndim == 0:
            x = np.broadcast_to(x, shape)
        elif name.startswith("observation") and self._single:
            x = x[None]
        if x.shape != shape:
            raise UserError(f"{name} is {x.shape}; it must be {dtype} {shape}")
        array = x.astype(dtype)
        if array.dtype.kind != "f" and (lost := array != x).any():
            raise UserError(f"{name} has {x[lost].flat[0]}; it must be {dtype}")
        return array


def named(name: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths, as `observation.camera`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        ".".join(
            filter(None, (name, jax.tree_util.keystr(path, simple=True, separator=".")))
        ): x
        for path, x in leaves
    }
