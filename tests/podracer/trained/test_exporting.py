"""Exported programs: the same actions as the agent's, for all kinds of policies."""

import dataclasses
import hashlib
import importlib.util
import io
import json
import pickle
import re
import runpy
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np
import pytest
from dm_env import specs
from PIL import Image

from podracer import exported, starts
from podracer.agents import from_flags
from podracer.errors import UserError
from podracer.trained import comparison, exporting, loading
from podracer.transformations import Interface
from tests.drawn_environment import spec_of

HAS_ONNX = all(map(importlib.util.find_spec, ("jax2onnx", "onnxruntime")))
NUMBERS = specs.BoundedArray((3,), np.float32, [-1, -2, -3], [1, 2, 3])
UNBOUNDED = specs.Array((3,), np.float32)
IMAGE = specs.BoundedArray((6, 6, 2), np.uint8, 0, 255)
LARGE = specs.BoundedArray((36, 36, 1), np.uint8, 0, 255)
CHOICE = starts.Choice(3, np.int32)
SEVERAL = starts.Choices((2,), np.int32, 0, [2, 3], start=[5, -1])
FORCES = specs.BoundedArray((2,), np.float32, [-2, 0], [2, 1])
WIDE = specs.BoundedArray((2,), np.float32, -1e9, 1e9)  # no action is at a bound
MASK = specs.BoundedArray((3,), bool, False, True)
SEPARATE = {"policy_sees": ("image", "choice"), "value_sees": ("numbers",)}


class Case(NamedTuple):
    """A kind of policy, with tiny networks."""

    agent: str
    observation: Any
    action: Any
    network: Mapping[str, Any] = MappingProxyType({})
    interface: Mapping[str, Any] = MappingProxyType({})
    config: Mapping[str, Any] = MappingProxyType({})
    frame_stack: int = 1


def remembering(observation: Any, network: dict[str, Any], frame_stack=1) -> Case:
    """Its actions tell apart what it remembers."""
    small = {"memory_size": 4} if "memory" in network else {}
    return Case(
        "ppo", observation, WIDE, small | network, {"actions": "clip"}, {}, frame_stack
    )


TREE = {
    "numbers": NUMBERS,
    "image": IMAGE,
    "choice": starts.Choice(4, np.int32, start=2),
    "several": (starts.Choices((2,), np.int32, 0, 5), specs.Array((), np.float32)),
}
MASKED = {"action_mask": MASK, "numbers": NUMBERS}
CASES = {
    "numbers": Case("ppo", NUMBERS, CHOICE),
    "tanh": Case("ppo", NUMBERS, CHOICE, {"activation": "tanh", "layer_norm": True}),
    "start": Case("impala", NUMBERS, starts.Choice(3, np.int32, start=7)),
    "unbounded": Case("ppo", UNBOUNDED, FORCES),
    "image": Case("impala", IMAGE, CHOICE, {"center_images": True}),
    "shallow": Case("ppo", LARGE, CHOICE, {"torso": "shallow"}),
    "a3c": Case("ppo", LARGE, CHOICE, {"torso": "a3c"}),
    "resnet": Case("impala", IMAGE, CHOICE, {"torso": "resnet"}),
    "tree": Case("ppo", TREE, CHOICE),
    "sees": Case("ppo", TREE, CHOICE, SEPARATE),
    "separate": remembering(NUMBERS, {"memory": "lstm", "separate_value": True}),
    "lstm": remembering(NUMBERS, {"memory": "lstm"}),
    "gru": remembering(NUMBERS, {"memory": "gru", "memory_layers": 2}),
    "lru": remembering(NUMBERS, {"memory": "lru"}),
    "mingru": remembering(NUMBERS, {"memory": "mingru"}),
    "gtrxl": remembering(
        NUMBERS, {"memory": "gtrxl", "memory_window": 3, "memory_heads": 2}
    ),
    "frames": remembering(IMAGE, {}, 3),
    "last": remembering(NUMBERS, {"last_action": True, "last_reward": True}),
    "last choice": Case("impala", NUMBERS, CHOICE, {"last_action": True}),
    "last force": Case(
        "ppo", NUMBERS, FORCES, {"last_action": True, "memory": "lstm"}, frame_stack=2
    ),
    "normalized": Case(
        "ppo",
        UNBOUNDED,
        FORCES,
        interface={"normalize_observations": True, "normalize_rewards": True},
    ),
    "scaled": Case("ppo", NUMBERS, FORCES, interface={"scale_observations": True}),
    "clipped": Case("ppo", NUMBERS, FORCES, interface={"actions": "clip"}),
    "several": Case("ppo", NUMBERS, SEVERAL),
    "composite": Case("impala", NUMBERS, {"turn": CHOICE, "push": FORCES}),
    "masked": Case("impala", MASKED, CHOICE),
    "masked q": Case("dqn", MASKED, CHOICE),
    "bfloat16": Case("ppo", IMAGE, CHOICE, {"precision": "bfloat16"}),
    "batch_ppo": Case("batch_ppo", NUMBERS, FORCES),
    "pqn": Case("pqn", NUMBERS, CHOICE, {"memory": "lstm", "memory_size": 4}),
    "dqn": Case("dqn", IMAGE, CHOICE, frame_stack=2),
    "sac": Case("sac", NUMBERS, FORCES),
    "td3": Case("td3", NUMBERS, FORCES),
    "lpg": Case("lpg", NUMBERS, CHOICE),
    "disco": Case("disco", NUMBERS, CHOICE),
    "muzero": Case("muzero", NUMBERS, CHOICE, config={"num_simulations": 3}),
    "gumbel": Case(
        "muzero", MASKED, CHOICE, config={"num_simulations": 3, "policy": "gumbel"}
    ),
}


def trained(case: Case) -> loading.Trained:
    """An agent with drawn parameters, as of a run."""
    algorithm = from_flags.algorithm_named(case.agent)
    make_network, network = from_flags.network_maker(None, algorithm)
    names = {x.name for x in dataclasses.fields(network)}
    small = {"hidden_sizes": (5,)} if "hidden_sizes" in names else {}
    parts = from_flags.Parts(
        algorithm,
        dataclasses.replace(from_flags.for_run(algorithm.config, 1000), **case.config),
        dataclasses.replace(network, **(small | dict(case.network))),
        case.observation,
        case.action,
        Interface(**case.interface),
        case.frame_stack,
        make_network,
    )
    agent = from_flags.make_agent(parts)
    random = np.random.default_rng(0)

    def drawn(x: Any) -> np.ndarray:
        """Of either sign where it is a matrix; variances and the like are positive."""
        if not np.issubdtype(x.dtype, np.floating):
            return np.ones(x.shape, x.dtype)
        numbers = random.normal(size=x.shape, scale=np.prod(x.shape[:-1]) ** -0.5)
        return np.float32(numbers if x.ndim > 1 else np.abs(numbers))

    def initial(key):
        return agent.actor_params(agent.initial_learner_state(key))

    params = jax.tree.map(drawn, jax.eval_shape(initial, jax.random.key(0)))
    run = loading.run.StoredRun(
        "run", case.agent, "env", {"agent": {}}, {}, {}, "anakin"
    )
    return loading.Trained(run, agent, params, case.observation, case.action, 7)


# Others like them are tried each time.
SLOW = {
    "gumbel",
    "muzero",
    "gru",
    "lru",
    "mingru",
    "separate",
    "shallow",
    "a3c",
    "several",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in CASES],
)
def test_a_program_acts_as_the_agent_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "BATCH_SIZES", (3,))
    line = exporting.write(trained(CASES[name]), True, tmp_path / "x.stablehlo")
    assert "bit for bit" in line


# Beyond jax2onnx (a search) or onnxruntime on a CPU (bfloat16).
NOT_ONNX = "bfloat16", "muzero", "gumbel"


@pytest.mark.skipif(not HAS_ONNX, reason="needs the extra onnx")
@pytest.mark.parametrize("name", [x for x in CASES if x not in NOT_ONNX])
def test_an_onnx_model_acts_as_the_agent(name, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "BATCH_SIZES", (3,))
    exporting.write(trained(CASES[name]), True, tmp_path / "x.onnx")


@pytest.mark.skipif(not HAS_ONNX, reason="needs the extra onnx")
@pytest.mark.parametrize("name", NOT_ONNX)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # of jax2onnx
def test_what_is_no_onnx_is_one_line(name, tmp_path):
    with pytest.raises(
        UserError, match=r"cannot .* this policy \(.*\): export it as .st"
    ):
        exporting.write(trained(CASES[name]), True, tmp_path / "x.onnx")
    assert not [*tmp_path.iterdir()]


RECURRENT = CASES["lstm"]._replace(action=CHOICE, interface={})


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A program with a state."""
    path = tmp_path_factory.mktemp("exported") / "policy.stablehlo"
    exporting.write(trained(RECURRENT), True, path)
    return path


def test_only_what_actions_depend_on_goes_in_and_out():
    def names(name, greedy=True):
        header = exporting.make_program(trained(CASES[name]), greedy).header
        return [[x["name"] for x in header[y]] for y in ("inputs", "outputs")]

    assert names("numbers") == [["observation"], ["action"]]
    assert names("numbers", False) == [["key", "observation"], ["action"]]
    assert names("sees")[0] == ["observation.choice", "observation.image"]
    state = ["state.0", "state.1"]
    after = [f"next_{x}" for x in state]
    # Neither the memory of the value, nor its weights.
    assert names("separate") == [[*state, "first", "observation"], ["action", *after]]
    assert names("composite")[1] == ["action.push", "action.turn"]
    assert names("last")[0] == ["state.0", "first", "reward", "observation"]
    weights = exporting.make_program(trained(CASES["dqn"]), True).header["weights"]
    assert not any("target" in x["name"] for x in weights)


@pytest.mark.parametrize("name", ["numbers", "composite", "sac", "dqn"])
def test_a_sampled_program_draws_as_the_agent(name, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "BATCH_SIZES", (3,))
    line = exporting.write(trained(CASES[name]), False, tmp_path / "x.stablehlo")
    assert "sampled; acts as podracer.load, bit for bit" in line


def test_another_policy_is_not_written(tmp_path, monkeypatch):
    make_program = exporting.make_program

    def other(*arguments):
        program = make_program(*arguments)
        return program._replace(weights=[-x for x in program.weights])

    monkeypatch.setattr(exporting, "make_program", other)
    with pytest.raises(
        UserError, match=r"acts .* apart from podracer.load .* not writt"
    ):
        exporting.write(trained(CASES["sac"]), True, tmp_path / "x.stablehlo")
    assert not [*tmp_path.iterdir()]


def test_what_jax_cannot_export_is_one_line(tmp_path):
    agent = trained(CASES["numbers"])

    def step(*arguments):
        state, output = agent.agent.greedy_actor_step(*arguments)
        action = jax.pure_callback(np.copy, output.action, output.action)
        return state, output._replace(action=action)

    calling = agent._replace(agent=agent.agent._replace(greedy_actor_step=step))
    with pytest.raises(UserError, match="^this policy cannot be a program: .*callback"):
        exporting.write(calling, True, tmp_path / "x.stablehlo")
    assert not [*tmp_path.iterdir()]


def test_numbers_beyond_a_programs_integers_are_one_line():
    far = starts.Choice(3, np.int64, start=2**31 - 2)
    with pytest.raises(
        UserError, match="begin with 2147483646, beyond a program's int32"
    ):
        exporting.make_program(trained(CASES["numbers"]._replace(action=far)), True)


@pytest.mark.parametrize("seed", range(3))
def test_a_program_takes_observations_of_any_structure(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "BATCH_SIZES", (3,))
    case = CASES["numbers"]._replace(observation=spec_of(seed))
    exporting.write(trained(case), True, tmp_path / "x.stablehlo")


def test_a_reader_takes_one_environment_or_many(file):
    one, many = exported.load(file), exported.load(file, batch_size=3)
    observations = np.random.default_rng(0).normal(size=(4, 3, 3))
    for number, x in enumerate(observations):
        actions = many(x, first=None if number else True)
        assert one([*x[0]]) == actions[0] and actions.shape == (3,)
    one.reset()
    assert one(observations[0, 1]) == exported.load(file)(observations[0, 1])


def test_a_reader_names_what_does_not_fit(file, tmp_path):
    act = exported.load(file)
    for arguments, line in (
        ([{"image": 1}], r"observation is \(1,\); it must be float32 \(1, 3\)"),
        ([np.zeros(4)], r"observation is \(1, 4\); it must be float32 \(1, 3\)"),
        ([np.zeros(3), [True, False]], r"first is \(2,\); it must be bool \(1,\)"),
        ([np.zeros(3), 2], r"first has 2; it must be bool"),
    ):
        with pytest.raises(UserError, match=line):
            act(*arguments)
    exporting.write(trained(CASES["last"]), True, tmp_path / "x.stablehlo")
    act = exported.load(tmp_path / "x.stablehlo")
    act(np.zeros(3))
    with pytest.raises(UserError, match="reward is missing"):
        act(np.zeros(3))
    act(np.zeros(3), reward=1.0)
    for options in ({"batch_size": 0}, {"seed": -1}):
        with pytest.raises(UserError, match="it must be"):
            exported.load(file, **options)


def forged(data, program=None, **changes):
    """A file with another header or program, and the checksum of it."""
    start = exported.START
    size = struct.unpack("<Q", data[start - 8 : start])[0]
    header, rest = json.loads(data[start : start + size]), data[start + size :]
    if program is not None:
        rest = program + rest[header["bytes"] :]
        header["bytes"] = len(program)
    text = json.dumps(header | changes).encode()
    rest = struct.pack("<Q", len(text)) + text + rest
    return exported.MAGIC + hashlib.sha256(rest).digest() + rest


def test_a_damaged_or_foreign_file_is_one_line(file, tmp_path):
    data = file.read_bytes()
    places = np.linspace(0, len(data) - 1, 12).astype(int)
    flipped = [data[:i] + bytes([data[i] ^ 255]) + data[i + 1 :] for i in places]
    cut = [data[:i] for i in (0, 10, 30, 55, 300, len(data) - 1)]
    archive, picture = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as other:
        other.writestr("program", data)
    Image.new("RGB", (3, 3)).save(picture, "png")
    foreign = [archive.getvalue(), picture.getvalue(), pickle.dumps({"a": data})]
    large = [{"name": "w", "dtype": "float32", "shape": [2**40]}]
    others = [
        forged(data, bytes=10),
        forged(data, bytes="x"),
        forged(data, weights=large),
        forged(data, weights=[{}]),
        forged(data, weights=None),
        forged(data, inputs=[{"name": "first", "dtype": "what", "shape": []}]),
        forged(data, outputs=1),
        forged(data, b"", jax=None),
    ]
    path = tmp_path / "x.stablehlo"
    for content in [*flipped, *cut, *foreign, *others, data + b"x"]:
        path.write_bytes(content)
        with pytest.raises(UserError) as error:
            exported.load(path)
        assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
    with pytest.raises(UserError, match="cannot read: No such file"):
        exported.load(tmp_path / "none")


def test_a_program_that_calls_other_code_is_refused(file, tmp_path):
    whole = jax.export.export(jax.jit(jax.numpy.linalg.cholesky))(np.eye(2, dtype="f4"))
    path = tmp_path / "x.stablehlo"
    path.write_bytes(forged(file.read_bytes(), bytes(whole.serialize())))
    with pytest.raises(UserError, match=r"calls lapack_\w+, .* no part of a policy"):
        exported.load(path)


OURS = "chex dm_env flax matplotlib mctx optax orbax rich rlax safetensors tyro yaml"
ALONE = f"""
import sys
import numpy as np

class None_:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {OURS.split()}:
            raise ImportError(name)

sys.meta_path.insert(0, None_())
from podracer import exported
print(exported.load(sys.argv[1])(np.zeros(3)))
"""


def test_a_reader_needs_jax_alone(file):
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(file)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.strip() == str(exported.load(file)(np.zeros(3))), done.stderr


PAGE = Path(__file__).parents[3] / "docs" / "export.md"
BLOCK = re.compile(r"<!-- runs: (\w+) -->\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("ending, code", BLOCK.findall(PAGE.read_text()))
def test_an_example_of_the_page_runs(ending, code, tmp_path, monkeypatch, capsys):
    if ending == "onnx" and not HAS_ONNX:
        pytest.skip("needs the extra onnx")
    monkeypatch.chdir(tmp_path)
    catch = RECURRENT._replace(observation=specs.Array((10, 5), np.float32))
    exporting.write(trained(catch), True, Path(f"policy.{ending}"))
    Path("example.py").write_text(code)
    runpy.run_path("example.py")
    assert len(capsys.readouterr().out.splitlines()) == 3
