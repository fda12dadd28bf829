"""A policy as a file, for where podracer is not: StableHLO, ONNX, safetensors.

Parameters alone are written as safetensors. A program is all of what acting computes, from an environment's own observation to its own
action, as a function of arrays: preprocessing, memory as a state in and out, weights inside.
Inputs that change no action, now or later, are left out.
"""

import functools
import hashlib
import json
import logging
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dm_env
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jax.extend import core
from jax.interpreters import partial_eval

from podracer import exported, files, imports, kernels, starts
from podracer.errors import UserError
from podracer.metrics import human
from podracer.observations import named
from podracer.runs import run_folder, spec_json
from podracer.runs.run import StoredRun
from podracer.trained import inputs, loading
from podracer.trained.loading import Trained
from podracer.trained.policy import Policy

ENDINGS = ".safetensors", ".stablehlo", ".onnx"
PLATFORMS = "cpu", "cuda", "tpu"
TOLERANCE = 1e-5  # of an action, relative to it where it is above 1
BATCH_SIZES, STEPS = (1, 16), 12  # of the comparison with `podracer.load`
BATCH = "batch"  # in a shape: any number of environments
FIRST, MID, _ = dm_env.StepType


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
        _libraries()
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
    tensors = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(trained.params)
        if jnp.issubdtype(x.dtype, jnp.number)
    }
    about = {"agent": trained.run.agent, "env": trained.run.env}
    data = safetensors.numpy.save(tensors, about | {"updates": str(trained.updates)})
    with files.writing(file), files.atomic(file) as temporary:
        temporary.write_bytes(data)
    return sum(x.size for x in tensors.values())


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
        ".onnx": (onnx, _load_onnx),
    }[file.suffix]
    with kernels.without(), files.writing(file), files.atomic(file) as temporary:
        program = make_program(trained, greedy)
        data = make(program)
        temporary.write_bytes(data)
        load = functools.partial(load, temporary)
        alike = compare(trained, greedy, load, environment)
    words = [f"{len(data) / 1e6:.2f} MB", program.header["actions"]]
    if simulations := trained.run.config["agent"].get("num_simulations"):
        words.append(f"with its search of {simulations} simulations")
    return f"{', '.join(words)}; {alike}"


class Seen(NamedTuple):
    """What a policy is given, of B environments."""

    observation: Any  # [B, ...]
    first: np.ndarray  # bool [B]
    reward: np.ndarray  # float32 [B]


def compare(
    trained: Trained,
    greedy: bool,
    load: Callable[..., exported.Policy],
    environment: Any | None = None,
) -> str:
    """Acts with a program and with `podracer.load`'s policy; describes how they differ.

    Args:
      load: (batch_size=, seed=) -> the program's policy.
      environment: as for `write`.

    Raises UserError where they act differently.
    """
    largest, decisions = 0.0, 0
    for batch_size in BATCH_SIZES:
        policy = Policy(trained, batch_size, greedy, seed=1)
        program = load(batch_size=batch_size, seed=1)
        actions = program.header["outputs"][: len(jax.tree.leaves(trained.action_spec))]
        source = _played if environment else _drawn
        seen = source(trained, batch_size, environment)
        given = next(seen)
        for _ in range(STEPS):
            expected, actual = policy(*given), program(*given)
            actual = actual if isinstance(actual, dict) else {"action": actual}
            for x, name in zip(jax.tree.leaves(expected), actions, strict=True):
                distance = _distance(actual[name["name"]], x)
                largest = np.maximum(largest, distance)  # NaN, if one is
            given = seen.send(expected)
            decisions += batch_size
    where = (
        f"{decisions} actions on {'played' if environment else 'drawn'} observations"
    )
    if not largest <= TOLERANCE:
        raise UserError(
            f"the program acts {largest:g} apart from podracer.load ({where}), and is not "
            "written: please report this with the run's config.json"
        )
    difference = f"within {largest:.1e}" if largest else "bit for bit"
    return f"acts as podracer.load, {difference} ({where})"


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    """The largest of two policies' actions; infinity where choices differ, or shapes."""
    if x.shape != y.shape or y.dtype.kind != "f":
        return 0.0 if np.array_equal(x, y) else np.inf
    distance = np.abs(x - y) / np.maximum(1.0, np.abs(y))
    return float(np.max(distance, initial=0.0))


def _played(
    trained: Trained, batch_size: int, environment: Any
) -> Generator[Seen, Any, None]:
    """What the environment shows; is sent the actions. Episodes follow one another."""
    initial_state = jax.jit(jax.vmap(environment.initial_state))
    step = jax.jit(jax.vmap(environment.step))
    key = jax.random.key(0)
    state, timestep = initial_state(jax.random.split(key, batch_size))
    while True:
        spec = trained.observation_spec
        observation = spec_json.in_types_of(spec, jax.device_get(timestep.observation))
        first, reward = (np.asarray(x) for x in (timestep.first(), timestep.reward))
        observation = jax.tree.map(starts.own, spec, observation)
        action = yield Seen(observation, first, reward)
        action = jax.tree.map(starts.from_own, trained.action_spec, action)
        key, *keys = jax.random.split(key, 3)
        keys = [jax.random.split(x, batch_size) for x in keys]
        ended, begun = timestep.last(), initial_state(keys[0])
        after = step(keys[1], state, action)

        def chosen(x: jax.Array, y: jax.Array, ended: jax.Array = ended) -> jax.Array:
            return jnp.where(ended.reshape(-1, *[1] * (x.ndim - 1)), x, y)

        state, timestep = jax.tree.map(chosen, begun, after)


def _drawn(trained: Trained, batch_size: int, _: Any) -> Generator[Seen, Any, None]:
    """Observations drawn from their spec; is sent the actions, which change nothing."""
    random = np.random.default_rng(0)
    share = 1.0  # of environments where an episode begins
    while True:
        yield Seen(
            jax.tree.map(
                lambda spec: _draw(random, spec, batch_size), trained.observation_spec
            ),
            random.random(batch_size) < share,
            np.float32(random.normal(size=batch_size)),
        )
        share = 0.2


def _draw(random: np.random.Generator, spec: Any, batch_size: int) -> np.ndarray:
    """[B, ...] in the environment's own numbers: within the bounds, and near 0."""
    shape, dtype = (batch_size, *spec.shape), spec.dtype
    if dtype.kind == "f":
        low, high, near = -np.inf, np.inf, 10.0
    elif dtype == bool:
        low, high, near = 0, 1, 1.0
    else:
        low, high, near = np.iinfo(dtype).min, np.iinfo(dtype).max, 255.0
    low = np.maximum(getattr(spec, "minimum", low), -near)
    high = np.maximum(low, np.minimum(getattr(spec, "maximum", high), near))
    if dtype.kind == "f":
        return np.asarray(random.uniform(low, high, shape), dtype)
    numbers = np.floor(random.uniform(low, high + 1, shape))
    return starts.own(spec, numbers.astype(dtype))


class Program(NamedTuple):
    """What acting computes, and what its arrays are called."""

    # (weights, inputs) -> outputs: the actions, and the state after
    act: Callable[[Sequence[Any], Sequence[Any]], list[jax.Array]]
    weights: list[np.ndarray]
    header: dict[str, Any]  # see docs/export.md


class Arguments(NamedTuple):
    """All that acting may depend on, for a batch of B environments."""

    weights: Any  # the actor parameters
    key: Any  # uint32 [2], the seed and the number of the step, from 1
    state: Any  # [B, ...] the actor state
    first: Any  # bool [B], which environments begin an episode
    reward: Any  # float32 [B], as the environment gave it; anything where one begins
    observation: Any  # [B, ...] in the environment's own numbers


def make_program(trained: Trained, greedy: bool) -> Program:
    """The program of a run's policy, `greedy` or sampled.

    Raises UserError for choices that the program's integers cannot count.
    """
    example = _example(trained)
    leaves, structure = jax.tree.flatten(example)
    names = [
        *named(example.weights),
        "key",
        *(f"state.{i}" for i in range(len(jax.tree.leaves(example.state)))),
        "first",
        "reward",
        *exported.named("observation", example.observation),
    ]
    key, states = len(jax.tree.leaves(example.weights)), names.index("first")
    actions = len(jax.tree.leaves(trained.action_spec))
    step = _step(trained, greedy)

    def whole(*leaves: Any) -> list[Any]:
        state, action = step(structure.unflatten(leaves))
        return [*jax.tree.leaves(state), *jax.tree.leaves(action)]

    jaxpr = jax.make_jaxpr(whole)(*leaves).jaxpr
    needed = inputs.needed(jaxpr, key + 1, states - key - 1, actions)
    needed[key] &= not greedy  # a search that draws numbers draws the same at each step
    needed[states] |= not any(
        needed[key + 1 :]
    )  # to say how many environments there are
    outputs = [*needed[key + 1 : states], *[True] * actions]

    def act(weights: Sequence[Any], inputs: Sequence[Any]) -> list[jax.Array]:
        batch = inputs[-1].shape[0]  # the key is the first
        given = iter([*weights, *inputs])
        filled = [
            next(given) if is_needed else _zeros(leaf, batch if i > key else None)
            for i, (leaf, is_needed) in enumerate(zip(leaves, needed))
        ]
        closed = jax.make_jaxpr(whole)(*filled)
        pruned, used = partial_eval.dce_jaxpr(closed.jaxpr, outputs)
        function = core.jaxpr_as_fun(core.ClosedJaxpr(pruned, closed.consts))
        results = function(*(x for x, is_used in zip(filled, used) if is_used))
        return [*results[-actions:], *results[:-actions]]

    kept = [i for i, is_needed in enumerate(needed) if is_needed]
    of_weights = [i for i in kept if i < key]
    return Program(
        act,
        [np.asarray(leaves[i]) for i in of_weights],
        {
            "agent": trained.run.agent,
            "env": trained.run.env,
            "updates": trained.updates,
            "actions": "greedy" if greedy else "sampled",
            "jax": jax.__version__,
            "observation_spec": spec_json.encode(trained.observation_spec),
            "action_spec": spec_json.encode(trained.action_spec),
            "inputs": [_input(names[i], leaves[i]) for i in kept if i >= key],
            "outputs": [
                *(
                    _array(name, _dtype(spec), BATCH, *spec.shape)
                    for name, spec in exported.named(
                        "action", trained.action_spec
                    ).items()
                ),
                *(
                    _array(f"next_{names[i]}", x.dtype, BATCH, *x.shape[1:])
                    for i, x in enumerate(leaves)
                    if needed[i] and key < i < states
                ),
            ],
            "weights": [
                _array(names[i], leaves[i].dtype, *leaves[i].shape) for i in of_weights
            ],
        },
    )


def _example(trained: Trained) -> Arguments:
    """Of two environments, at the start of an episode."""
    return Arguments(
        trained.params,
        jnp.zeros(2, jnp.uint32),
        trained.agent.initial_actor_state(2),
        jnp.ones(2, bool),
        jnp.zeros(2),
        jax.tree.map(
            lambda spec: jnp.zeros((2, *spec.shape), _dtype(spec)),
            trained.observation_spec,
        ),
    )


def _step(trained: Trained, greedy: bool) -> Callable[[Arguments], tuple[Any, Any]]:
    """(arguments) -> (actor state, action in the environment's own numbers).

    As `podracer.load`'s policy calls the agent, key by key.
    """
    agent = trained.agent
    actor_step = agent.greedy_actor_step if greedy else agent.actor_step

    def from_own(spec: Any, x: jax.Array) -> jax.Array:
        return x - _start(spec, x.shape) if starts.of(spec).any() else x

    def to_own(spec: Any, x: jax.Array) -> jax.Array:
        x = x.astype(_dtype(spec))
        return x + _start(spec, x.shape) if starts.of(spec).any() else x

    def step(arguments: Arguments) -> tuple[Any, Any]:
        params, (seed, number), state, first, reward, observation = arguments
        key = jax.random.fold_in(jax.random.key(seed), number)
        timestep = dm_env.TimeStep(
            jnp.where(first, jnp.int32(FIRST), jnp.int32(MID)),
            jnp.where(first, 0.0, reward),
            jnp.ones_like(reward),
            jax.tree.map(from_own, trained.observation_spec, observation),
        )
        keys = jax.random.split(key, reward.shape[0])
        state, output = actor_step(keys, params, state, timestep)
        return state, jax.tree.map(to_own, trained.action_spec, output.action)

    return step


def _dtype(spec: Any) -> np.dtype:
    """Of the program's arrays: JAX has no 64 bits unless it is told to."""
    return jax.dtypes.canonicalize_dtype(spec.dtype)


def _start(spec: Any, shape: Any) -> jax.Array:
    """What the environment's own numbers begin with, in the program's integers."""
    start, most = starts.of(spec), np.iinfo(_dtype(spec))
    if (start < most.min).any() or (start + spec.maximum > most.max).any():
        raise UserError(
            f"choices begin with {start.min()}, beyond {most.dtype}, the program's "
            "integers: count them from a smaller number in the environment"
        )
    return jnp.broadcast_to(start.astype(_dtype(spec)), shape)


def _zeros(example: jax.Array, batch: Any) -> jax.Array:
    """In place of an input on which no action depends; batch None: it has no such axis."""
    shape = example.shape if batch is None else (batch, *example.shape[1:])
    return jnp.zeros(shape, example.dtype)


def _array(name: str, dtype: np.dtype, *shape: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype.name, "shape": [*shape]}


def _input(name: str, example: jax.Array) -> dict[str, Any]:
    """An input; of a state, with what it is before the first step of one environment."""
    if name == "key":
        return _array(name, example.dtype, *example.shape)
    described = _array(name, example.dtype, BATCH, *example.shape[1:])
    if not name.startswith("state."):
        return described
    one = np.asarray(example)[0]
    equal = one.size and (one == one.flat[0]).all()
    return described | {"initial": (one.flat[0] if equal else one).tolist()}


def stablehlo(program: Program) -> bytes:
    """The program in the format of `podracer.exported`, for any of `PLATFORMS`."""
    (batch,) = jax.export.symbolic_shape(BATCH)

    def of(array: dict[str, Any]) -> jax.ShapeDtypeStruct:
        shape = [batch if n == BATCH else n for n in array["shape"]]
        return jax.ShapeDtypeStruct(shape, array["dtype"])

    arguments = ([of(x) for x in program.header[y]] for y in ("weights", "inputs"))
    try:
        whole = jax.export.export(jax.jit(program.act), platforms=PLATFORMS)(*arguments)
        serialized = bytes(whole.serialize())
    except ImportError as error:
        raise UserError("writing a program takes: pip install flatbuffers") from error
    except (NotImplementedError, ValueError) as error:  # it calls Python, for one
        raise UserError(
            f"this policy cannot be a program: {_first_line(error)}"
        ) from error
    exported.check_calls("this policy", whole)
    header = json.dumps(program.header | {"bytes": len(serialized)}).encode()
    weights = [x.tobytes() for x in program.weights]
    data = b"".join([struct.pack("<Q", len(header)), header, serialized, *weights])
    return exported.MAGIC + hashlib.sha256(data).digest() + data


def onnx(program: Program) -> bytes:
    """The program as an ONNX model; its metadata `podracer` is the header.

    Raises UserError where the extra `onnx` is missing, and for what jax2onnx does not convert.
    """
    jax2onnx, _ = _libraries()
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
            f"jax2onnx cannot convert this policy ({_first_line(error)}): export it as "
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


def _libraries() -> tuple[Any, Any]:
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


def _load_onnx(file: Path, batch_size: int, seed: int) -> exported.Policy:
    """The policy of an ONNX model, by onnxruntime."""
    _, onnxruntime = _libraries()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(
            file, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # of types that are onnxruntime's own
        raise UserError(
            f"onnxruntime cannot run this policy ({_first_line(error)}): export it as "
            ".stablehlo"
        ) from error
    header = json.loads(session.get_modelmeta().custom_metadata_map["podracer"])
    names = [x["name"] for x in header["inputs"]]

    def run(inputs: list[Any]) -> list[np.ndarray]:
        return session.run(None, dict(zip(names, inputs, strict=True)))

    return exported.Policy(header, run, batch_size, seed)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
