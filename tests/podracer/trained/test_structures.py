"""Whatever structure an observation has, a run of it is evaluated, loaded and resumed."""

import collections
import json
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import anakin
import anakin.command.subcommands as anakin_command
import podracer
from podracer import networks, starts
from podracer.agents import impala
from podracer.runs import spec_json
from podracer.transformations.normalizer import normalize_observations
from tests.drawn_environment import Drawn, spec_of
from tests.environments import Counter
from tests.podracer.trained.test_damaged_runs import FUZZ
from tests.podracer.trained.test_loading import train

NAME = "tests.drawn_environment:Drawn"
FLAGS = f"--agent ppo --env {NAME} --batch-size 4 --unroll-length 4 --cores 1"
# An example takes ten seconds to compile. This one has every container, and every type but
# DiscreteArray, whose subclass Choice it has.
DRAWN = [Phase.generate] if "PODRACER_FUZZ" in os.environ else []
WITH_ALL = 2848


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
@example(seed=WITH_ALL)
@settings(FUZZ, phases=[Phase.explicit, *DRAWN])
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


class Eye(NamedTuple):
    left: Any
    right: Any


class Observation(NamedTuple):
    eye: Any
    speed: Any


# Of the same names, in another module, and newer.
OTHERS = [
    collections.namedtuple(x.__name__, x._fields, module="others")
    for x in (Eye, Observation)
]


class Eyes(Counter):
    """Its observation is a NamedTuple with another inside."""

    def initial_state(self, key):
        state, timestep = super().initial_state(key)
        return state, self._with_eyes(timestep)

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return state, self._with_eyes(timestep)

    def _with_eyes(self, timestep):
        count = timestep.observation
        seen = Observation(Eye(count[0].astype(jnp.int32) % 3, count), count)
        return timestep._replace(observation=seen)

    def observation_spec(self):
        speed = super().observation_spec()
        return Observation(Eye(starts.Choice(3, start=-1), speed), speed)


def test_a_scripts_agent_is_loaded_for_its_own_types(tmp_path):
    """To JAX, other types of the same names are other trees."""
    environment = Eyes()
    spec = environment.observation_spec()
    network = networks.actor_critic(
        spec, environment.action_spec(), networks.Config(hidden_sizes=(4,))
    )
    agent = impala.make_agent(impala.Config(), network)
    agent = normalize_observations(agent, spec)
    sizes = {"batch_size": 4, "unroll_length": 4, "total_steps": 32, "cores": 1}
    recorded = podracer.record(
        anakin.train, agent, environment, run=tmp_path / "run", quiet=True, **sizes
    )
    for _ in recorded:
        pass
    act = podracer.load(tmp_path / "run", agent=agent)
    assert jax.tree.structure(act.observation_spec) == jax.tree.structure(spec)
    one = np.ones(1, np.float32)
    action = act(Observation(Eye(np.int32(0), one), one))
    same = {"eye": {"left": 0, "right": one}, "speed": one}
    assert action == act(same, first=True) in (0, 1)


def test_types_are_found_by_their_names():
    of = spec_json.users_named_tuple
    fields = ("left", "right")
    assert of("Eye", fields, __name__) is Eye
    assert of("Eye", fields, "others") is of("Eye", fields, "__main__") is OTHERS[0]
    ours = spec_json.named_tuple("Eye", ("left",))
    assert of("Eye", ("left",), __name__) is ours
