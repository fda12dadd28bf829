"""ale-py's vector behind the host protocol. Skipped where ale-py is not installed."""

import dm_env
import numpy as np
import pytest

from podracer.errors import UserError
from sebulba import host_environments
from sebulba.host_environments.envpool import AtariOptions
from tests.sebulba.host_environments.stepping import check_protocol, interact

pytest.importorskip("ale_py", reason="ale-py is not installed (podracer[ale])")
FIRST, MID, LAST = dm_env.StepType


def make(game="breakout", batch_size=2, seed=0, threads=1, **options):
    return host_environments.make(
        f"ale:{game}", batch_size, seed, threads, AtariOptions(**options)
    )


def same_step(game):
    """One game of a vector that resets at once and keeps the final observation apart."""
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        game,
        1,
        num_threads=1,
        noop_max=1,
        stack_num=1,
        reward_clipping=False,
        max_num_frames_per_episode=4 * 150,
        autoreset_mode="SameStep",
    )


def test_the_last_observation_is_seen_and_first_follows():
    """Against ale-py's same-step resets, which keep the final observation apart."""
    ours = make(batch_size=1, seed=4, noop_max=1, max_episode_steps=150)
    theirs = same_step("breakout")
    timestep, (expected, _) = ours.reset(), theirs.reset(seed=4)
    random, ends = np.random.default_rng(0), []
    for step in range(400):
        np.testing.assert_array_equal(timestep.observation[..., 0], expected[:, 0])
        action = random.integers(0, 4, 1).astype(np.int32)
        timestep = ours.step(action)
        expected, reward, terminated, truncated, info = theirs.step(action)
        assert timestep.reward == reward
        if terminated or truncated:
            assert timestep.step_type == LAST and timestep.discount == 1 - terminated
            final = info["final_obs"][0]
            np.testing.assert_array_equal(timestep.observation[0, ..., 0], final[0])
            ends.append(step)
            timestep = ours.step(action)  # the action is ignored
            assert timestep.step_type == FIRST and timestep.reward == 0
        else:
            assert timestep.step_type == MID
    ours.close()
    assert len(ends) >= 2 and ends[0] == 149


def test_a_time_limit_truncates_every_game():
    timesteps = interact(make("pong", max_episode_steps=20, noop_max=1), 45)
    check_protocol(timesteps)
    last = timesteps.step_type == LAST
    assert [*np.flatnonzero(last[:, 0])] == [20, 41] and (timesteps.discount == 1).all()
    assert timesteps.observation[0].shape == (2, 84, 84, 1)
    assert timesteps.observation[0].dtype == np.uint8


def test_lives_are_episodes_if_asked_and_games_are_counted_whole():
    lives = make(per_life=True, noop_max=1)
    timesteps = interact(lives, 700)
    check_protocol(timesteps)
    games = lives.finished_games()
    ends = (timesteps.step_type == LAST).sum()
    assert games.finished >= 2 and ends >= 5 * games.finished
    assert 0 < games.return_sum <= timesteps.reward.sum() + ends
    assert (timesteps.discount[timesteps.step_type == LAST] == 0).all()
    assert make().finished_games() is None


def test_an_end_in_the_first_step_of_a_life_is_not_lost():
    """The protocol holds where a game is over, or cut off, with FIRST."""
    environment = make(per_life=True, noop_max=1, batch_size=1)
    script = iter(  # terminated, truncated
        [(0, 0), (1, 0), (0, 1), (0, 0), (1, 0), (0, 0), (0, 0), (0, 1), (0, 0), (0, 0)]
    )

    sent = []

    def step(action):
        sent.append(int(action[0]))
        terminated, truncated = next(script)
        return (
            np.zeros((1, 1, 84, 84), np.uint8),
            np.ones(1, np.int32),
            np.array([bool(terminated)]),
            np.array([bool(truncated)]),
            {"episode_frame_number": np.ones(1, int)},
        )

    environment.reset()
    environment._vector.step = step
    rows = [environment.step(np.full(1, 2, np.int32)) for _ in range(10)]
    kinds = [int(row.step_type[0]) for row in rows]
    assert kinds == [MID, LAST, FIRST, LAST, FIRST, LAST, FIRST, LAST, FIRST, MID]
    ends = [float(row.discount[0]) for row in rows if row.last()]
    assert ends == [0, 1, 0, 1]  # a time limit is no termination, there as elsewhere
    fire = 1  # after each LAST, instead of the agent's action
    assert sent == [2, 2, fire, 2, fire, 2, fire, 2, fire, 2]


def test_streams_depend_on_the_seed_alone():
    def observations(threads, seed):
        environment = make(
            batch_size=3, threads=threads, seed=seed, sticky_actions=0.25
        )
        return np.stack(interact(environment, 20).observation)

    one = observations(1, 0)
    np.testing.assert_array_equal(one, observations(2, 0))
    shifted = observations(1, 1)
    np.testing.assert_array_equal(one[0, 1:], shifted[0, :-1])
    assert (one != shifted).any()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ale:Pong", "named 'Pong' .names are as ale:ms_pacman.; did you mean 'pong'"),
        ("ale:ALE/Pong-v5", "names are as ale:ms_pacman"),
        ("ale:", "no game of ale-py is named ''"),
    ],
)
def test_unknown_games_are_one_line(name, line):
    with pytest.raises(UserError, match=line) as error:
        host_environments.default_options(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("setting", ["threads", "batch_size"])
def test_no_environments_and_no_threads_are_refused(setting):
    with pytest.raises(UserError, match="is 0; it must be (at least|from) 1"):
        make(**{setting: 0})
