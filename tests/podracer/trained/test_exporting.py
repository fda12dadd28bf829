"""Exported programs: the same actions as the agent's, for all kinds of policies."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from dm_env import specs

from podracer import starts
from podracer.agents import from_flags
from podracer.errors import UserError
from podracer.trained import exporting, loading
from podracer.transformations import Interface

HAS_ONNX = all(map(importlib.util.find_spec, ("jax2onnx", "onnxruntime")))
NUMBERS = specs.BoundedArray((3,), np.float32, [-1, -2, -3], [1, 2, 3])
UNBOUNDED = specs.Array((3,), np.float32)
IMAGE = specs.BoundedArray((6, 6, 2), np.uint8, 0, 255)
LARGE = specs.BoundedArray((36, 36, 1), np.uint8, 0, 255)
CHOICE = starts.Choice(3, np.int32)
SEVERAL = starts.Choices((2,), np.int32, 0, [2, 3], start=[5, -1])
FORCES = specs.BoundedArray((2,), np.float32, [-2, 0], [2, 1])
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


def memory(kind: str, **others: Any) -> dict[str, Any]:
    return {"memory": kind, "memory_size": 4, **others}


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
    "image": Case("impala", IMAGE, CHOICE),
    "shallow": Case("ppo", LARGE, CHOICE, {"torso": "shallow"}),
    "a3c": Case("ppo", LARGE, CHOICE, {"torso": "a3c"}),
    "resnet": Case("impala", IMAGE, CHOICE, {"torso": "resnet"}),
    "tree": Case("ppo", TREE, CHOICE),
    "sees": Case("ppo", TREE, CHOICE, SEPARATE),
    "separate": Case("ppo", NUMBERS, FORCES, memory("lstm", separate_value=True)),
    "lstm": Case("impala", NUMBERS, CHOICE, memory("lstm")),
    "gru": Case("impala", NUMBERS, CHOICE, memory("gru", memory_layers=2)),
    "lru": Case("ppo", NUMBERS, CHOICE, memory("lru")),
    "mingru": Case("ppo", NUMBERS, CHOICE, memory("mingru")),
    "gtrxl": Case(
        "ppo", NUMBERS, CHOICE, memory("gtrxl", memory_window=3, memory_heads=2)
    ),
    "frames": Case("impala", IMAGE, CHOICE, frame_stack=3),
    "last": Case("ppo", NUMBERS, CHOICE, {"last_action": True, "last_reward": True}),
    "last force": Case(
        "ppo", NUMBERS, FORCES, {"last_action": True} | memory("lstm"), frame_stack=2
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
    "pqn": Case("pqn", NUMBERS, CHOICE, memory("lstm")),
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
        numbers = random.normal(size=x.shape)
        return np.float32(numbers if x.ndim > 1 else np.abs(numbers))

    def initial(key):
        return agent.actor_params(agent.initial_learner_state(key))

    params = jax.tree.map(drawn, jax.eval_shape(initial, jax.random.key(0)))
    run = loading.run.StoredRun(
        "run", case.agent, "env", {"agent": {}}, {}, {}, "anakin"
    )
    return loading.Trained(run, agent, params, case.observation, case.action, 7)


@pytest.mark.parametrize("name", CASES)
def test_a_program_acts_as_the_agent_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "BATCH_SIZES", (3,))
    line = exporting.write(trained(CASES[name]), True, tmp_path / "x.stablehlo")
    assert "bit for bit" in line


# Beyond jax2onnx (a search) or onnxruntime on a CPU (bfloat16).
NOT_ONNX = "bfloat16", "muzero", "gumbel"


@pytest.mark.skipif(not HAS_ONNX, reason="needs the extra onnx")
@pytest.mark.parametrize("name", CASES.keys() - {*NOT_ONNX})
def test_an_onnx_model_acts_as_the_agent(name, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "BATCH_SIZES", (3,))
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
