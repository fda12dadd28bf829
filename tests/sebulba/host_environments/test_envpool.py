"""EnvPool's simulators behind the protocol: FIRST, LAST and discounts at every position."""

import dm_env
import envpool
import jax
import numpy as np
import pytest
from dm_env import specs

from podracer import transformations
from podracer.agent import ActorOutput, Agent
from podracer.errors import UserError
from sebulba import host_environments
from sebulba.host_environments.envpool import AtariOptions, Options
from tests.sebulba.host_environments.stepping import (
    check_observations,
    check_protocol,
    interact,
    make,
    zeros,
)

FIRST, MID, LAST = dm_env.StepType


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v4"])
def test_a_fall_terminates_with_discount_0(name):
    timesteps = interact(make(name), 100)
    check_protocol(timesteps)
    assert (timesteps.step_type == LAST).sum() > 4
    assert (timesteps.discount[timesteps.step_type == LAST] == 0).all()
    assert (timesteps.reward[timesteps.step_type == LAST] != 0).all()


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v4", "CheetahRun-v1"])
def test_an_episode_that_is_cut_off_keeps_discount_1(name):
    timesteps = interact(make(name, max_episode_steps=7), 17)
    check_protocol(timesteps)
    np.testing.assert_array_equal(
        np.flatnonzero(timesteps.step_type[:, 0] == LAST), [7, 15]
    )
    assert (timesteps.discount == 1).all()


@pytest.mark.parametrize("name", ["CliffWalking-v1", "Catch-v0"])
def test_a_limit_that_a_task_ignores_is_one_line(name):
    environment = make(name, max_episode_steps=4)
    environment.reset()
    for _ in range(4):
        assert (environment.step(np.zeros(4, np.int32)).step_type == MID).all()
    line = f"^{name} ignores max_episode_steps, which is 4: leave it out"
    with pytest.raises(UserError, match=line) as error:
        environment.step(np.zeros(4, np.int32))
    assert "\n" not in str(error.value)
    environment.close()


@pytest.mark.parametrize("name", ["HalfCheetah-v4", "CartpoleSwingup-v1"])
def test_continuous_control_lasts_a_thousand_steps(name):
    """MuJoCo's tasks in gymnasium and dm_control: float64 and unbounded in EnvPool."""
    environment = make(name, batch_size=2)
    action, observation = environment.action_spec(), environment.observation_spec()
    assert action.dtype == np.float32
    assert (action.minimum == -1).all() and (action.maximum == 1).all()
    timesteps = interact(environment, 1_100)
    check_protocol(timesteps)
    check_observations(observation, timesteps.observation)
    assert [*np.flatnonzero((timesteps.step_type == LAST).all(1))] == [1_000]
    assert (timesteps.step_type == LAST).sum() == 2
    assert (timesteps.discount == 1).all()


@pytest.mark.parametrize(
    ("name", "maximum"), [("Tetris-v0", [3, 9]), ("MultiCVRP-v0", [20, 20])]
)
def test_several_discrete_actions_are_integers_from_0(name, maximum):
    environment = make(name)
    spec = environment.action_spec()
    assert spec.dtype == np.int32  # EnvPool's own are int32 and int16
    np.testing.assert_array_equal(spec.minimum, [0, 0])
    np.testing.assert_array_equal(spec.maximum, maximum)
    check_protocol(interact(environment, 20))


def test_pong_ends_and_begins_as_the_protocol_says():
    timesteps = interact(make("Pong-v5", max_episode_steps=20, batch_size=2), 45)
    check_protocol(timesteps)
    assert (timesteps.step_type == LAST).sum() == 4
    observation = timesteps.observation[0]
    assert observation.shape == (2, 84, 84, 1) and observation.dtype == np.uint8


def test_lives_are_episodes_if_asked_and_games_are_counted_whole():
    lives = make("Breakout-v5", batch_size=2, per_life=True, noop_max=1)
    timesteps = interact(lives, 700)
    check_protocol(timesteps)
    games = lives.finished_games()
    ends = (timesteps.step_type == LAST).sum()
    assert games.finished >= 2 and ends >= 5 * games.finished
    assert 0 < games.return_sum <= timesteps.reward.sum()
    assert lives.finished_games() == (0.0, 0.0)
    whole = make("Breakout-v5", batch_size=2, noop_max=1)
    assert whole.finished_games() is None


@pytest.mark.parametrize(
    ("name", "per_life"),
    [
        ("Breakout-v5", True),
        pytest.param("Breakout-v5", False, marks=pytest.mark.slow),
        pytest.param("Pong-v5", True, marks=pytest.mark.slow),
        ("Pong-v5", False),
    ],
)
def test_single_frames_stack_to_what_envpool_stacks(name, per_life):
    """Bit for bit; but EnvPool lets the stack of a new life look back into the last."""
    import envpool

    settings = {"noop_max": 1, "max_episode_steps": 120}
    frames = make(name, batch_size=2, per_life=per_life, **settings)
    stacks = envpool.make_gymnasium(
        name, num_envs=2, num_threads=1, seed=0, episodic_life=per_life, **settings
    )

    def observe(keys, params, actor_state, timestep):
        return actor_state, ActorOutput(timestep.reward, timestep.observation)

    agent = transformations.stack_frames(
        Agent(None, None, None, lambda batch_size: (), observe, observe),
        num_frames=4,
        frame_spec=frames.observation_spec(),
    )
    act = jax.jit(agent.actor_step)
    state, age = agent.initial_actor_state(2), np.zeros(2)
    timestep, expected = frames.reset(), stacks.reset()
    random, games = np.random.default_rng(0), 0
    for _ in range(300):
        state, output = act(None, (), state, timestep)
        age = np.where(timestep.first(), 0, age + 1)  # steps since FIRST
        same = (output.extras == np.moveaxis(expected[0], 1, -1)).all((1, 2, 3))
        games += (expected[-1]["elapsed_step"] == 0).sum()
        assert (same | (per_life & (age < 3))).all()
        action = random.integers(0, 4, 2).astype(np.int32)
        timestep, expected = frames.step(action), stacks.step(action)
    assert games >= 4


@pytest.mark.parametrize("name", ["CartPole-v1", "Pong-v5"])
def test_streams_depend_on_the_seed_alone(name):
    def observations(threads, seed):
        environment = make(name, batch_size=3, threads=threads, seed=seed)
        return np.stack(interact(environment, 12, zeros).observation)

    one = observations(1, 5)
    np.testing.assert_array_equal(one, observations(2, 5))
    # Environment i is seeded with seed + i: disjoint ranges are disjoint streams.
    shifted = observations(1, 6)
    np.testing.assert_array_equal(one[:, 1:], shifted[:, :-1])
    assert (one != shifted).any()


@pytest.mark.parametrize(
    ("name", "discrete"),
    [
        ("MiniGrid-Empty-5x5-v0", {"direction"}),
        ("Jumanji/Game2048-v1", set()),
        ("FrozenLake-v1", {""}),
        ("Play2048-v1", set()),  # a board of [4, 4, 31], no channels to move
    ],
)
def test_observations_of_any_structure_pass_as_they_are(name, discrete):
    environment = make(name)
    spec = environment.observation_spec()
    timesteps = interact(environment, 20)
    check_protocol(timesteps)
    check_observations(spec, timesteps.observation)
    parts = (spec if isinstance(spec, dict) else {"": spec}).items()
    assert discrete == {k for k, part in parts if isinstance(part, specs.DiscreteArray)}


@pytest.mark.parametrize("name", ["Pong-v5", "ale:pong"])
def test_images_are_contiguous_even_in_their_single_channel(name):
    """`flags.c_contiguous` says nothing of its stride; see `spaces.channels_last`."""
    environment = make(name, batch_size=2)
    for timestep in (environment.reset(), environment.step(np.zeros(2, np.int32))):
        assert timestep.observation.shape == (2, 84, 84, 1)
        assert timestep.observation.strides == (84 * 84, 84, 1, 1)


def test_options_are_those_of_the_family():
    assert type(host_environments.default_options("CartPole-v1")) is Options
    assert type(host_environments.default_options("Pong-v5")) is AtariOptions


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: make("Pongg-v5"), "named 'Pongg-v5'; did you mean 'Pong-v5'"),
        (lambda: make("jax:cach"), "named 'cach'; did you mean 'catch'"),
        (lambda: make("TicTacToe-v1"), "TicTacToe-v1 has several players"),
        (lambda: make("Pong-v5", frame_skip=0), "frame_skip is 0"),
        (lambda: make("Pong-v5", sticky_actions=1.5), "sticky_actions is 1.5"),
        (lambda: make("CartPole-v1", max_episode_steps=0), "max_episode_steps is 0"),
    ],
)
def test_bad_input_is_one_line(call, line):
    with pytest.raises(UserError, match=line) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("missing", "way"),
    [
        ("libEGL.so.1: cannot open shared object file", "apt-get install libegl1 "),
        ("No module named 'envpool_assets'", "pip install 'envpool"),
    ],
)
def test_what_envpool_lacks_is_named_with_a_way_out(monkeypatch, missing, way):
    def import_fails():
        raise ImportError(missing)

    monkeypatch.setattr(envpool, "list_all_envs", import_fails)
    with pytest.raises(UserError, match=f"Pong-v5 needs EnvPool .*{way}.*{missing}"):
        make("Pong-v5")


def test_what_the_system_lacks_is_named_as_envpool_names_it(monkeypatch):
    def make_spec(name):
        raise ImportError("it requires Qt 5.\nInstall it with `apt install`")

    monkeypatch.setattr(envpool, "make_spec", make_spec)
    line = "^Pong-v5: it requires Qt 5. Install it with `apt install`$"
    with pytest.raises(UserError, match=line):
        make("Pong-v5")


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        (
            lambda x, r: (x[:, :1], r),
            r"observation has shape \(1,\); declared is \(4,\)",
        ),
        (lambda x, r: (x.astype(str), r), "of dtype <U32; declared is float32"),
        (
            lambda x, r: (x + 100, r),
            r"observation\[0, 0\] is 100.*, outside the declared",
        ),
        (lambda x, r: (x, r * np.nan), "reward is nan; it must be finite"),
    ],
)
def test_a_lie_is_one_line(lie, line):
    """EnvPool's own are typed; this is what a wrong build or wrapper would do."""
    environment = make("CartPole-v1", batch_size=2)
    environment.reset()
    step = environment._pool.step

    def lying(action):
        observation, reward, *rest = step(action)
        return *lie(observation, reward), *rest

    action = np.zeros(2, np.int32)
    environment.step(action)
    environment._pool.step = lying
    with pytest.raises(
        UserError, match=f"^CartPole-v1: .*{line}.*correct the"
    ) as error:
        environment.step(action)
    assert "\n" not in str(error.value)
    environment.close()


def test_an_action_out_of_range_is_one_line():
    """EnvPool passes it on, and its simulator may do anything."""
    environment = make("CartPole-v1", batch_size=2)
    environment.reset()
    line = (
        r"CartPole-v1: action\[1\] is 2, outside the declared 0 to 1; correct the agent"
    )
    with pytest.raises(UserError, match=line):
        environment.step(np.array([0, 2], np.int32))
    environment.close()
