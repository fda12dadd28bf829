"""A policy as a file, for use without podracer: StableHLO, ONNX, safetensors."""

import functools
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export

from podracer import exported, files, kernels
from podracer.errors import UserError
from podracer.metrics import human
from podracer.runs import run_folder
from podracer.runs.run import StoredRun
from podracer.trained import comparison, loading, onnx_models, weights
from podracer.trained.loading import Trained
from podracer.trained.program import BATCH, Program, first_line, make_program

ENDINGS = ".safetensors", ".stablehlo", ".onnx"
PLATFORMS = "cpu", "cuda", "tpu"


def export(
    folder: str | Path,
    file: str | Path,
    updates: int | None = None,
    trust: bool = False,
    sampled: bool = False,
    make_environment: Callable[[StoredRun], Any | None] = lambda run: None,
) -> str:
    """Writes a run's policy, by the ending of the file; returns a line that describes it.

    A program is compared with `podracer.load`, and written only if it acts alike.

    Args:
      make_environment: (run) -> its environment if it is one of JAX, to compare them in.

    Raises:
      UserError: the run is missing, the ending unknown or the program another policy; the
        policy cannot be written so, or the file cannot be written.
    """
    file, ending = Path(file), Path(file).suffix
    if ending not in ENDINGS:
        raise UserError(f"file is {file}; it must end in {', '.join(ENDINGS)}")
    if sampled and ending != ".stablehlo":
        raise UserError(
            f"sampled is for .stablehlo, not for {ending}, which draws no random numbers: "
            "leave it out"
        )
    if ending == ".onnx":
        onnx_models.libraries()
    if file.name == run_folder.RULE and (file.parent / run_folder.CONFIG).exists():
        raise UserError(f"file is {file}; it is the rule of a run: choose another name")
    trained = loading.restore(folder, updates, trust=trust)
    if ending == ".safetensors":
        return f"{file}: {human(write_parameters(trained, file))} parameters"
    return f"{file}: {write(trained, not sampled, file, make_environment(trained.run))}"


def write_parameters(trained: Trained, file: Path) -> int:
    """Writes the parameters that act as safetensors; returns how many numbers they are.

    A name in the file is the path of a parameter, as `params.policy.Dense_0.kernel`.
    """
    about = {"agent": trained.run.agent, "env": trained.run.env}
    about |= {"updates": str(trained.updates)}
    data = weights.written(trained.params, about)
    with files.writing(file), files.atomic(file) as temporary:
        temporary.write_bytes(data)
    return weights.count(trained.params)


def write(
    trained: Trained, greedy: bool, file: Path, environment: Any | None = None
) -> str:
    """Writes an agent's policy as a program; returns what it is. See `export`.

    Args:
      environment: to compare the policies in, of envs_jax's protocol; None: with drawn
        observations.
    """
    make, load = {
        ".stablehlo": (stablehlo, exported.load),
        ".onnx": (onnx_models.write, onnx_models.load),
    }[file.suffix]
    with kernels.without(), files.atomic(file) as temporary:
        program = make_program(trained, greedy)
        data = make(program)
        temporary.write_bytes(data)
        load = functools.partial(load, temporary)
        alike = comparison.compare(trained, greedy, load, environment)
    words = [f"{len(data) / 1e6:.2f} MB", program.header["actions"]]
    if simulations := trained.run.config["agent"].get("num_simulations"):
        words.append(f"with its search of {simulations} simulations")
    return f"{', '.join(words)}; {alike}"


def stablehlo(program: Program) -> bytes:
    """The program in the format of `podracer.exported`, for any of `PLATFORMS`."""
    (batch,) = jax.export.symbolic_shape(BATCH)

    def of(array: dict[str, Any]) -> jax.ShapeDtypeStruct:
        shape = [batch if n == BATCH else n for n in array["shape"]]
        return jax.ShapeDtypeStruct(shape, array["dtype"])

    arguments = ([of(x) for x in program.header[y]] for y in ("weights", "inputs"))
    try:
        with kernels.for_all_platforms():
            whole = jax.export.export(jax.jit(program.act), platforms=PLATFORMS)(
                *arguments
            )
        serialized = bytes(whole.serialize())
    except ImportError as error:
        raise UserError("writing a program takes: pip install flatbuffers") from error
    except (NotImplementedError, ValueError) as error:  # it calls Python, for one
        raise UserError(
            f"this policy cannot be a program: {first_line(error)}"
        ) from error
    exported.check_calls("this policy", whole)
    header = json.dumps(program.header | {"bytes": len(serialized)}).encode()
    weights = [x.tobytes() for x in program.weights]
    data = b"".join([struct.pack("<Q", len(header)), header, serialized, *weights])
    return exported.MAGIC + hashlib.sha256(data).digest() + data
