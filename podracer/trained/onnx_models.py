"""Programs as ONNX models, which jax2onnx makes and onnxruntime runs: the extra `onnx`."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podracer import exported, imports
from podracer.errors import UserError
from podracer.trained.program import Program, first_line


def write(program: Program) -> bytes:
    """The program as an ONNX model; its metadata `podracer` is the header.

    Raises UserError where the extra `onnx` is missing, and for what jax2onnx does not convert.
    """
    jax2onnx, _ = libraries()
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # of types that it leaves out
    header = program.header
    arrays = [jax.ShapeDtypeStruct(x["shape"], x["dtype"]) for x in header["inputs"]]

    def act(*inputs: Any) -> tuple[jax.Array, ...]:
        # Copies: an action that is also a state would be one array with two names.
        return tuple(map(jnp.copy, program.act(program.weights, inputs)))

    try:
        with jax.numpy_rank_promotion("allow"):  # jax2onnx promotes
            model = jax2onnx.to_onnx(
                act,
                arrays,
                model_name=f"{header['agent']} on {header['env']}",
                input_names=[x["name"] for x in header["inputs"]],
                output_names=[x["name"] for x in header["outputs"]],
            )
    except Exception as error:  # whatever a converter trips over
        raise UserError(
            f"jax2onnx cannot convert this policy ({first_line(error)}): export it as "
            ".stablehlo"
        ) from error
    _pool_images(model.graph)
    _drop_unused(model.graph)
    about = model.metadata_props.add()
    about.key, about.value = "podracer", json.dumps(header)
    return model.SerializeToString()


def _drop_unused(graph: Any) -> None:
    """Removes constants of a graph and its loops that nothing reads: onnxruntime warns of them."""

    def within(graph: Any) -> Iterator[Any]:
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from within(attribute.g)

    graphs = [*within(graph)]
    used = {name for x in graphs for node in x.node for name in node.input}
    used |= {output.name for x in graphs for output in x.output}
    for x in graphs:
        kept = [constant for constant in x.initializer if constant.name in used]
        x.ClearField("initializer")
        x.initializer.extend(kept)


def _pool_images(graph: Any) -> None:
    """Lets onnxruntime compute maxima over windows of images.

    jax2onnx pools over all four axes of [B, H, W, C]; onnxruntime, over three at most. B, in
    which a window has the size 1, becomes the axis of channels.
    """
    from onnx import helper

    nodes = []
    for node in graph.node:
        sizes = {x.name: x.ints for x in node.attribute}
        if node.op_type != "MaxPool" or len(sizes["kernel_shape"]) < 4:
            nodes.append(node)
            continue
        source, result = node.input[0], node.output[0]
        axis = f"{result}.axis"
        graph.initializer.append(helper.make_tensor(axis, 7, [1], [0]))  # 7: int64
        node.input[0], node.output[0] = f"{source}.images", f"{result}.images"
        for name in ("kernel_shape", "strides"):
            del sizes[name][0]
        if "pads" in sizes:
            sizes["pads"][:] = [*sizes["pads"][1:4], *sizes["pads"][5:]]
        nodes += [
            helper.make_node("Squeeze", [source, axis], [node.input[0]]),
            node,
            helper.make_node("Unsqueeze", [node.output[0], axis], [result]),
        ]
    graph.ClearField("node")
    graph.node.extend(nodes)


def libraries() -> tuple[Any, Any]:
    """jax2onnx and onnxruntime. Raises UserError where they are not installed."""
    try:
        import jax2onnx
        import onnxruntime
    except ImportError as error:
        raise UserError(
            f"an .onnx file takes jax2onnx and onnxruntime ({error}): "
            f"{imports.install('onnx')}"
        ) from error
    return jax2onnx, onnxruntime


def load(file: Path, batch_size: int, seed: int) -> exported.Policy:
    """The policy of an ONNX model, by onnxruntime."""
    _, onnxruntime = libraries()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(
            file, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # of types that are onnxruntime's own
        raise UserError(
            f"onnxruntime cannot run this policy ({first_line(error)}): export it as "
            ".stablehlo"
        ) from error
    header = json.loads(session.get_modelmeta().custom_metadata_map["podracer"])
    names = [x["name"] for x in header["inputs"]]

    def run(inputs: list[Any]) -> list[np.ndarray]:
        return session.run(None, dict(zip(names, inputs, strict=True)))

    return exported.Policy(header, run, batch_size, seed)
