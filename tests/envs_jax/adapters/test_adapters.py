"""Adapters for other libraries follow the protocol: with fake and with real libraries."""

import importlib
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from flax import struct

import anakin
import anakin.__main__ as program
import anakin.command.subcommands as command
import envs_jax
from envs_jax import adapters
from envs_jax.adapters import (
    brax,
    craftax,
    gymnax,
    jumanji,
    kinetix,
    navix,
    playground,
    trees,
    xland,
)
from podracer import networks
from podracer.agents import impala
from podracer.errors import UserError
from tests.fake_libraries import (
    LEFT,
    LIMIT,
    RIGHT,
    FakeBenchmark,
    FakeBrax,
    FakeCache,
    FakeCraftax,
    FakeJumanji,
    FakeKinetix,
    FakeNavix,
    FakeXLand,
    LimitedBrax,
    NewGymnax,
    OldGymnax,
    Params,
    Rules,
    Seen,
    SixGymnax,
    Timed,
)

GYMNAX = (OldGymnax, NewGymnax, SixGymnax)
FAKES = {kind.__name__: gymnax.Gymnax(kind(), Params()) for kind in GYMNAX} | {
    "brax": envs_jax.TimeLimit(brax.Brax(FakeBrax()), LIMIT),
    "brax, wrapped": brax.Brax(LimitedBrax()),
    "craftax": envs_jax.TimeLimit(craftax.Craftax(FakeCraftax(), Timed()), LIMIT),
    "jumanji": jumanji.Jumanji(FakeJumanji()),
    "kinetix": envs_jax.TimeLimit(kinetix.Kinetix(FakeKinetix(), Timed()), LIMIT),
    "navix": navix.Navix(FakeNavix()),
    "xland": xland.XLand(FakeXLand(), Rules()),
}
fakes = pytest.mark.parametrize("environment", FAKES.values(), ids=FAKES)


# What the adapters import to play the fakes, where the library itself is not installed.
PARTS = {
    "navix.rendering.cache": SimpleNamespace(RenderingCache=FakeCache),
    "xminigrid.core.constants": SimpleNamespace(NUM_TILES=13, NUM_COLORS=12),
    "xminigrid.types": SimpleNamespace(
        StepType=SimpleNamespace(MID=np.uint8(1)),
        TimeStep=lambda state, *_: SimpleNamespace(state=state),
    ),
}
ABSENT = {
    name: module
    for name, module in PARTS.items()
    if importlib.util.find_spec(name.partition(".")[0]) is None
}


@pytest.fixture
def parts(monkeypatch):
    for name, module in ABSENT.items():
        above = name.split(".")[:-1]
        for n in range(1, len(above) + 1):
            package = SimpleNamespace(__path__=[])
            monkeypatch.setitem(sys.modules, ".".join(above[:n]), package)
        monkeypatch.setitem(sys.modules, name, module)


@fakes
def test_fakes_follow_the_protocol(environment, parts):
    envs_jax.check(environment, steps=20)


@fakes
def test_terminations_and_truncations_are_distinguished(environment, parts):
    """(step_type, discount, reward) of walking to the right and to the left."""
    spec = environment.action_spec()
    walks = []
    for action in (RIGHT, LEFT):
        if spec.shape == (2,):
            action = np.int32([action, 0])
        elif not isinstance(spec, specs.DiscreteArray):
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


@pytest.mark.parametrize("name", ["NewGymnax", "brax", "jumanji", "kinetix", "xland"])
def test_agents_train_in_fakes(name, parts):
    environment = FAKES[name]
    network = networks.actor_critic(
        environment.observation_spec(),
        environment.action_spec(),
        networks.Config(hidden_sizes=(4,)),
    )
    agent = impala.make_agent(impala.Config(), network)
    *_, (_, metrics) = anakin.train(
        agent, environment, batch_size=2, unroll_length=8, total_steps=32, cores=1
    )
    assert metrics["episodes"] > 0 and np.isfinite(metrics["loss/total"])


@struct.dataclass
class Node:
    demand: Any


class Plan(NamedTuple):
    node: Any
    action_mask: Any


class Combined(FakeJumanji):
    """One mask over the combinations of two choices, and a dataclass to see."""

    def step(self, state, action):
        assert action.shape == (2,)
        return super().step(state, jnp.int32(action.sum() == 3))  # the last of each

    def timestep(self, *arguments):
        timestep = super().timestep(*arguments)
        node = Node(timestep.observation.position)
        timestep.observation = Plan(node, jnp.ones((2, 3), bool))
        return timestep

    @property
    def action_spec(self):
        return SimpleNamespace(
            shape=(2,), dtype=np.int32, minimum=[0, 0], maximum=[1, 2]
        )


def test_combinations_of_jumanjis_choices_are_one_choice():
    environment = jumanji.Jumanji(Combined())
    envs_jax.check(environment)
    assert environment.action_spec().num_values == 6
    spec = environment.observation_spec()
    assert spec.action_mask.shape == (6,)
    assert spec.node.keys() == {"demand"}
    plain = jumanji.Jumanji(FakeJumanji())
    key = jax.random.key(0)
    (state, _), (plain_state, _) = (x.initial_state(key) for x in (environment, plain))
    for action, same in ((5, 1), (4, 0), (2, 0), (5, 1)):
        state, timestep = environment.step(key, state, jnp.int32(action))
        plain_state, expected = plain.step(key, plain_state, jnp.int32(same))
        assert timestep.observation.node["demand"] == expected.observation.position


class Windy(FakeBrax):
    """Its wind, which is part of the model, is seen, and blows from the second step on."""

    def __init__(self):
        self.sys = {"mass": jnp.float32(1.0), "wind": jnp.zeros(3)}

    @property
    def unwrapped(self):
        return self

    def see(self, position):
        return {"wind": self.sys["wind"] + 0.0 * position, "mass": self.sys["mass"]}


def drawn_wind(model, keys):
    wind = jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)
    return model | {"wind": wind}, {"mass": None, "wind": 0}


def test_each_episode_has_a_model_of_its_own():
    own = Windy()
    environment = brax.RandomizedBrax(own, None, drawn_wind)
    envs_jax.check(environment)
    step = jax.jit(environment.step)
    winds = []
    for seed in range(3):
        state, timestep = environment.initial_state(jax.random.key(seed))
        winds.append(np.asarray(timestep.observation["wind"]))
        for _ in range(2):
            state, timestep = step(jax.random.key(9), state, jnp.zeros(1))
            np.testing.assert_array_equal(timestep.observation["wind"], winds[-1])
        assert timestep.observation["mass"] == 1.0
    assert len({tuple(x) for x in winds}) == 3
    assert not own.sys["wind"].any()  # as it was


def test_jumanji_may_call_its_limit_a_termination_unless_ours_is_shorter():
    environment = jumanji.Jumanji(FakeJumanji(terminates=True))
    for limit, discount in ((LIMIT + 1, 0), (LIMIT - 1, 1)):
        limited = envs_jax.TimeLimit(environment, limit)
        state, timestep = limited.initial_state(jax.random.key(0))
        while not timestep.last():
            state, timestep = limited.step(jax.random.key(0), state, LEFT)
        assert timestep.discount == discount


def test_specs_are_dm_envs():
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


def test_a_librarys_own_limit_is_a_truncation_by_ours():
    """Craftax and Kinetix call theirs a termination."""
    for made in (craftax.Craftax, kinetix.Kinetix):
        environment = made(FakeCraftax(), Timed(4))
        assert environment.time_limit == 4
        assert made(FakeCraftax(), Timed(4), 9).time_limit == 9
        assert environment.params.max_timesteps == trees.NO_LIMIT


def test_kinetix_has_several_choices():
    spec = FAKES["kinetix"].action_spec()
    assert spec.dtype == np.int32 and spec.maximum.tolist() == [1, 2]


def test_every_episode_of_a_benchmark_has_rules_of_its_own(parts):
    environment = xland.XLand(FakeXLand(), Rules(), FakeBenchmark())
    envs_jax.check(environment, steps=20)
    keys = jax.random.split(jax.random.key(0), 200)
    state, _ = jax.jit(jax.vmap(environment.initial_state))(keys)
    plain, _ = jax.jit(jax.vmap(FAKES["xland"].initial_state))(keys)
    assert set(plain.position.tolist()) == {-1, 0, 1}
    assert set(state.position.tolist()) == {-3, -2, -1, 0, 1}


def test_grids_of_symbols_are_no_pictures(parts):
    """Bytes [H, W, C] would be divided by 255 and convolved."""
    for name in ("navix", "xland"):
        assert FAKES[name].observation_spec().dtype == np.int32
    assert FAKES["xland"].observation_spec().maximum.tolist() == [12, 11]


def test_navix_carries_no_picture(parts):
    state, _ = jax.eval_shape(FAKES["navix"].initial_state, jax.random.key(0))
    assert max(leaf.size for leaf in jax.tree.leaves(state)) <= 4


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
    """A fake gymnax module with one environment."""
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
        ("gymnax:Walk-v0", {"time_limit": 0}, "time_limit is 0; it must be from 1"),
        ("gymnax:Walk-v0", {"time_limit": 2**31}, f"time_limit is {2**31}; it must"),
        ("jumanji:Snake-v1", {}, "pip install jumanji"),
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
    choose = command.ENVIRONMENTS.choose
    assert choose("gymnax:Walk-v0").name == "gymnax:Walk-v0"
    assert choose(command.ENVIRONMENTS.default).name == "catch"
    with pytest.raises(UserError, match="did you mean 'catch'"):
        choose("cacth")


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--env", "jumanji:Snake-v1"], "pip install jumanji"),
        (["--env", "gymnax:Wolk-v0"], "nearest: Walk-v0"),
        (["--env", "gymnax:Walk-v0", "--env.time-limit", "0"], "time_limit is 0"),
        (["--env", "gymnax:Walk-v0", "--env.rows", "3"], "--env.rows: no such flag"),
    ],
)
def test_the_commands_error_is_one_line(library, arguments, line, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jumanji", None)
    monkeypatch.setattr(sys, "argv", ["anakin", "train", *arguments])
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    with pytest.raises(SystemExit) as stop:
        program.main()
    error = capsys.readouterr().err
    assert stop.value.code == 2 and line in error and error.count("\n") == 1


def test_playground_uses_physics_that_run_on_any_device(monkeypatch):
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


# With the real libraries

REAL = [
    ("gymnax:CartPole-v1", {}),
    ("gymnax:Pendulum-v1", {}),
    ("gymnax:Catch-bsuite", {}),
    ("brax:inverted_pendulum", {"backend": "spring"}),
    ("jumanji:Snake-v1", {}),
    ("kinetix:s/h2_one_wheel_car", {}),
    ("kinetix:random-s", {}),
    ("navix:Navix-Dynamic-Obstacles-5x5-Random-v0", {}),
    ("playground:CartpoleBalance", {}),
    ("xland:MiniGrid-DoorKey-5x5", {}),
    ("xland:XLand-MiniGrid-R1-9x9", {"view_size": 7}),
    # The last one: it takes minutes to compile.
    ("craftax:Craftax-Classic-Symbolic-v1", {}),
]
ALIKE = {"kinetix:s/h2_one_wheel_car"}  # every episode begins alike, none is random


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, options", REAL, ids=[name for name, _ in REAL])
def test_real_environments_follow_the_protocol_and_train(name, options):
    pytest.importorskip(adapters.LIBRARIES[name.partition(":")[0]])
    with jax.numpy_rank_promotion("allow"):  # in their code, not ours
        environment = envs_jax.make(name, **options)
        envs_jax.check(environment, steps=20, deterministic=name in ALIKE)
        network = networks.actor_critic(
            environment.observation_spec(), environment.action_spec()
        )
        agent = impala.make_agent(impala.Config(), network)
        *_, (_, metrics) = anakin.train(
            agent, environment, batch_size=2, unroll_length=8, total_steps=32, cores=2
        )
    assert metrics["steps"] == 32 and np.isfinite(metrics["loss/total"])


PICTURES = [
    "craftax:Craftax-Classic-Symbolic-v1",
    "kinetix:s/h2_one_wheel_car",
    "navix:Navix-DoorKey-6x6-v0",
    "xland:MiniGrid-DoorKey-5x5",
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PICTURES)
def test_real_environments_draw_their_states(name):
    pytest.importorskip(adapters.LIBRARIES[name.partition(":")[0]])
    with jax.numpy_rank_promotion("allow"):
        environment = envs_jax.make(name)
        draw, step = jax.jit(environment.render), jax.jit(environment.step)
        state, _ = jax.jit(environment.initial_state)(jax.random.key(0))
        spec, pictures = environment.action_spec(), []
        for turn in range(5):
            picture = np.asarray(draw(state))
            assert picture.dtype == np.uint8 and picture.shape[2] == 3
            assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 3  # colours
            pictures.append(picture)
            action = np.full(spec.shape, np.minimum(turn, spec.maximum), np.int32)
            state, _ = step(jax.random.key(turn), state, action)
    assert any((picture != pictures[0]).any() for picture in pictures)
