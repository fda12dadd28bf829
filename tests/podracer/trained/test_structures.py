"""Whatever structure an observation has, a run of it is evaluated, loaded and resumed."""

import json
import os

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anakin.__main__ as anakin_command
import podracer
from podracer import starts
from podracer.runs import spec_json
from tests.drawn_environment import Drawn, spec_of
from tests.podracer.trained.test_damaged_runs import FUZZ
from tests.podracer.trained.test_loading import train

NAME = "tests.drawn_environment:Drawn"
FLAGS = f"--agent ppo --env {NAME} --batch-size 4 --unroll-length 4 --cores 1"
EXAMPLES = int(os.environ.get("PODRACER_FUZZ", "3"))  # an example compiles


@given(seed=st.integers(0, 2**32 - 1))
@settings(FUZZ, max_examples=200)
def test_a_spec_comes_back_out_of_json(seed):
    spec = spec_of(seed)
    after = spec_json.decode(json.loads(json.dumps(spec_json.encode(spec))))
    assert jax.tree.leaves(after) == jax.tree.leaves(spec)
    begins = [
        [starts.of(x).tolist() for x in jax.tree.leaves(y)] for y in (spec, after)
    ]
    assert begins[0] == begins[1]
    before, now = (jax.tree_util.tree_leaves_with_path(x) for x in (spec, after))
    assert [path for path, _ in before] == [path for path, _ in now]
    arrays = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), spec)
    own = jax.tree.map(starts.own, spec, arrays)
    for seen in (
        spec_json.as_spec(after, own),
        spec_json.in_types_of(after, arrays),
    ):
        assert jax.tree.structure(seen) == jax.tree.structure(after)
        for x, y in zip(jax.tree.leaves(seen), jax.tree.leaves(arrays), strict=True):
            np.testing.assert_array_equal(x, y)


@given(seed=st.integers(0, 2**32 - 1))
@settings(FUZZ, max_examples=EXAMPLES)
@pytest.mark.timeout(36_000)
def test_a_run_is_evaluated_loaded_and_resumed(seed, tmp_path, capsys):
    folder = tmp_path / str(seed)
    flags = f"{FLAGS} --env.seed {seed} --network.hidden-sizes 4"
    flags += " --interface.normalize-observations"
    train(anakin_command, folder, f"{flags} --total-steps 32")
    anakin_command.evaluate([str(folder), "--trust", "--episodes", "2"])
    assert "over 2 episodes of 5 steps" in capsys.readouterr().out
    environment = Drawn(seed)
    _, timestep = environment.initial_state(jax.random.key(0))
    act = podracer.load(folder, trust=True)
    observation = jax.tree.map(np.asarray, timestep.observation)
    own = jax.tree.map(starts.own, environment.observation_spec(), observation)
    assert act(own) in (0, 1)
    command = [*flags.split(), "--total-steps", "64", "--resume", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anakin_command.parallel, "use_cpu_cores", lambda *_, **__: None)
        anakin_command.train([*command, "--allow-changes", "--quiet"])
    assert podracer.load(folder, trust=True).observation_spec == act.observation_spec
