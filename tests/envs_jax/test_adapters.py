"""Other libraries' environments keep the protocol: fakes of them, and the real ones."""

import importlib
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from dm_env import specs

import anakin
import anakin.__main__ as command
import envs_jax
from envs_jax import adapters
from envs_jax.adapters import brax, gymnax, jumanji, playground, trees
from podracer import networks
from podracer.agents import impala
from podracer.errors import UserError
from tests.fake_libraries import (
    LEFT,
    LIMIT,
    RIGHT,
    FakeBrax,
    FakeJumanji,
    LimitedBrax,
    NewGymnax,
    OldGymnax,
    Params,
    Seen,
    SixGymnax,
)

GYMNAX = (OldGymnax, NewGymnax, SixGymnax)
FAKES = {kind.__name__: gymnax.Gymnax(kind(), Params()) for kind in GYMNAX} | {
    "brax": envs_jax.TimeLimit(brax.Brax(FakeBrax()), LIMIT),
    "brax, wrapped": brax.Brax(LimitedBrax()),
    "jumanji": jumanji.Jumanji(FakeJumanji()),
}
fakes = pytest.mark.parametrize("environment", FAKES.values(), ids=FAKES)


@fakes
def test_fakes_keep_the_protocol(environment):
    envs_jax.check(environment, steps=20)


@fakes
def test_a_termination_is_no_truncation(environment):
    """(step_type, discount, reward) of going to the right and to the left."""
    spec = environment.action_spec()
    walks = []
    for action in (RIGHT, LEFT):
        if not isinstance(spec, specs.DiscreteArray):
            action = np.float32([2 * action - 1])
        state, timestep = environment.initial_state(jax.random.key(0))
        walks.append([])
        while not timestep.last():
            state, timestep = environment.step(jax.random.key(1), state, action)
            walks[-1].append((int(timestep.step_type), *map(float, timestep[2:0:-1])))
    home, late = walks
    assert 2 <= len(home) <= 4 and len(late) == LIMIT
    assert home == [(1, 1, 0)] * (len(home) - 1) + [(2, 0, 1)]
    assert late == [(1, 1, 0)] * (LIMIT - 1) + [(2, 1, 0)]


@pytest.mark.parametrize("name", ["NewGymnax", "brax", "jumanji"])
def test_agents_train_in_fakes(name):
    environment = FAKES[name]
    network = networks.actor_critic(
        environment.observation_spec(), environment.action_spec()
    )
    agent = impala.make_agent(impala.Config(), network)
    *_, (_, metrics) = anakin.train(
        agent, environment, batch_size=2, unroll_length=8, total_steps=32, cores=2
    )
    assert metrics["episodes"] > 0 and np.isfinite(metrics["loss/total"])


def test_jumanji_may_call_its_limit_a_termination_unless_ours_is_shorter():
    environment = jumanji.Jumanji(FakeJumanji(terminates=True))
    for limit, discount in ((LIMIT + 1, 0), (LIMIT - 1, 1)):
        limited = envs_jax.TimeLimit(environment, limit)
        state, timestep = limited.initial_state(jax.random.key(0))
        while not timestep.last():
            state, timestep = limited.step(jax.random.key(0), state, LEFT)
        assert timestep.discount == discount


def test_specs_are_ours():
    old, box, grid = (FAKES[name] for name in ("OldGymnax", "brax", "jumanji"))
    assert old.action_spec() == specs.DiscreteArray(2, np.int32, "action")
    assert old.observation_spec() == specs.BoundedArray((1,), np.float32, -10, 10)
    assert box.observation_spec() == {"state": specs.Array((1,), np.float32)}
    assert box.action_spec().maximum == 1 and box.action_spec().dtype == np.float32
    assert grid.observation_spec() == Seen(
        specs.Array((), np.float32),
        specs.BoundedArray((), np.int32, 0, LIMIT),
        specs.BoundedArray((2,), bool, False, True),
    )


@pytest.mark.parametrize(
    "shape, dtype, bounds, bounded",
    [
        ((2, 3), np.float32, (0, [1, 2, 3]), True),
        ((2, 3), np.float32, (0, [1, 2]), False),  # of another shape
        ((), np.float32, (0, [1]), False),
        ((2,), np.float32, (-np.inf, np.inf), True),
        ((2,), np.int32, (-np.inf, 5), False),  # no integer
        ((2,), np.int32, None, False),
    ],
)
def test_bounds_that_cannot_be_are_left_out(shape, dtype, bounds, bounded):
    spec = trees.array_spec(jax.ShapeDtypeStruct(shape, dtype), bounds)
    assert isinstance(spec, specs.BoundedArray) == bounded
    assert (spec.shape, spec.dtype) == (shape, dtype)


# Names


@pytest.fixture
def library(monkeypatch):
    """A module in place of gymnax, with one environment."""
    module = SimpleNamespace(
        registered_envs=["Walk-v0"], make=lambda name: (NewGymnax(), Params())
    )
    monkeypatch.setitem(sys.modules, "gymnax", module)


def test_make_finds_a_librarys_environment(library):
    made = envs_jax.make("gymnax:Walk-v0", time_limit=2)
    assert made.params.max_steps_in_episode == 2
    assert envs_jax.make("gymnax:Walk-v0").params == Params()


@pytest.mark.parametrize(
    "name, options, message",
    [
        (
            "gymnaks:Walk-v0",
            {},
            "no library is named 'gymnaks'; nearest: gymnax; known",
        ),
        (
            "gymnax:Wolk-v0",
            {},
            "no environment of gymnax is named 'Wolk-v0'; nearest: W",
        ),
        ("gymnax:Walk-v0", {"time_limit": 0}, "time_limit is 0; an episode needs"),
        ("jumanji:Snake-v1", {}, r"pip install 'podracer\[jumanji\]'"),
    ],
)
def test_make_says_what_is_missing(library, monkeypatch, name, options, message):
    monkeypatch.setitem(sys.modules, "jumanji", None)  # an import fails
    with pytest.raises(ValueError, match=message) as error:
        envs_jax.make(name, **options)
    assert "\n" not in str(error.value)


def test_every_library_has_its_adapter():
    for library in adapters.LIBRARIES:
        adapter = importlib.import_module(f"envs_jax.adapters.{library}")
        assert callable(adapter.names) and callable(adapter.make)


def test_the_command_knows_the_names(library):
    assert (
        command.choose_environment(["--env", "gymnax:Walk-v0"]).name == "gymnax:Walk-v0"
    )
    assert command.choose_environment([]).name == "catch"
    with pytest.raises(UserError, match="did you mean 'catch'"):
        command.choose_environment(["--env", "cacth"])


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--env", "jumanji:Snake-v1"], "pip install 'podracer[jumanji]'"),
        (["--env", "gymnax:Wolk-v0"], "nearest: Walk-v0"),
        (["--env", "gymnax:Walk-v0", "--env.time-limit", "0"], "time_limit is 0"),
        (["--env", "gymnax:Walk-v0", "--env.rows", "3"], "--env.rows: no such flag"),
    ],
)
def test_the_commands_complaint_is_one_line(
    library, arguments, line, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "jumanji", None)
    monkeypatch.setattr(sys, "argv", ["anakin", "train", *arguments])
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    with pytest.raises(SystemExit) as stop:
        command.main()
    error = capsys.readouterr().err
    assert stop.value.code == 2 and line in error and error.count("\n") == 1


def test_playground_asks_for_physics_that_every_device_has(monkeypatch):
    asked = {}

    class Config(dict):
        episode_length = 7

    registry = SimpleNamespace(
        ALL_ENVS=("Walk",),
        get_default_config=lambda name: Config(impl="warp"),
        load=lambda name, config, overrides: asked.update(overrides) or FakeBrax(),
    )
    module = SimpleNamespace(registry=registry)
    monkeypatch.setitem(sys.modules, "mujoco_playground", module)
    assert playground.make("Walk").time_limit == 7 and asked == {"impl": "jax"}
    assert envs_jax.make("playground:Walk", time_limit=3, impl="warp").max_steps == 3
    assert asked == {"impl": "warp"}


# The real ones

REAL = [
    ("gymnax:CartPole-v1", {}),
    ("gymnax:Pendulum-v1", {}),
    ("gymnax:Catch-bsuite", {}),
    ("brax:inverted_pendulum", {"backend": "spring"}),
    ("jumanji:Snake-v1", {}),
    ("playground:CartpoleBalance", {}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, options", REAL, ids=[name for name, _ in REAL])
def test_real_environments_keep_the_protocol_and_train(name, options):
    pytest.importorskip(adapters.LIBRARIES[name.partition(":")[0]])
    with jax.numpy_rank_promotion("allow"):  # theirs, not ours
        environment = envs_jax.make(name, **options)
        envs_jax.check(environment, steps=20)
        network = networks.actor_critic(
            environment.observation_spec(), environment.action_spec()
        )
        agent = impala.make_agent(impala.Config(), network)
        *_, (_, metrics) = anakin.train(
            agent, environment, batch_size=2, unroll_length=8, total_steps=32, cores=2
        )
    assert metrics["steps"] == 32 and np.isfinite(metrics["loss/total"])
