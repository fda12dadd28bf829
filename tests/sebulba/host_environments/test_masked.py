"""What gymnasium's environments offer beside observations: masks, parts of actions, pictures."""

import contextlib
import types

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from podracer.errors import UserError
from sebulba import host_environments
from sebulba.command import environments
from sebulba.host_environments.masked import WithMask
from sebulba.host_environments.options import Options
from sebulba.host_environments.processes import Processes

OPTIONS = Options(step_seconds=20.0)


class Picky(gymnasium.Env):
    """Two of five actions are allowed, as `action_masks` says; others are an error."""

    observation_space = spaces.Box(0, 99, (1,), np.float32)
    action_space = spaces.MultiDiscrete([2, 3], start=[4, 7])

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert (action >= [4, 7]).all()
        assert self.action_masks()[[action[0] - 4, 2 + action[1] - 7]].all()
        self.steps += 1
        return np.float32([self.steps]), 1.0, self.steps == 6, False, {}

    def action_masks(self):
        mask = np.zeros(5, bool)
        mask[[self.steps % 2, 2 + self.steps % 3]] = True
        return mask


def test_masks_come_with_the_observations():
    make = lambda seed: lambda: WithMask(Picky(), "gym:Picky")
    with contextlib.closing(Processes("gym:Picky", make, 2, 0, OPTIONS)) as environment:
        spec = environment.observation_spec()["action_mask"]
        assert (spec.shape, spec.dtype) == ((5,), bool)
        timestep = environment.reset()
        for _ in range(8):  # through an episode's end
            mask = timestep.observation["action_mask"]
            assert mask.dtype == bool and (mask.sum(1) == 2).all()
            choices = [mask[:, :2].argmax(1), mask[:, 2:].argmax(1)]
            timestep = environment.step(np.stack(choices, 1).astype(np.int32))


def test_the_mask_of_a_registered_environment():
    options = Options(action_mask=True, step_seconds=20.0)
    make = host_environments.make("gym:Taxi-v4", 1, 3, 1, options)
    alone = gymnasium.make("Taxi-v4")
    with contextlib.closing(make) as environment:
        for seed, timestep in ((3, environment.reset()), (None, None)):
            if timestep is None:
                timestep = environment.step(np.int32([0]))
                observation, *_, info = alone.step(0)
            else:
                observation, info = alone.reset(seed=seed)
            seen = timestep.observation
            assert seen["observation"] == observation
            np.testing.assert_array_equal(seen["action_mask"][0], info["action_mask"])


@pytest.mark.parametrize(
    ("mask", "space", "line"),
    [
        (None, spaces.Discrete(3), "x gives no mask; with action_mask on, .* one of 3"),
        (np.ones(2), spaces.Discrete(3), "x gives a mask of 2; .* one of 3"),
        (None, spaces.Box(0, 1, (2,)), "x has actions Box.*leave action_mask out"),
    ],
)
def test_a_mask_that_is_missing_or_does_not_fit_is_one_line(mask, space, line):
    class Other(gymnasium.Env):
        observation_space, action_space = Picky.observation_space, space

        def reset(self, **arguments):
            info = {} if mask is None else {"action_mask": mask}
            return np.zeros(1, np.float32), info

    with pytest.raises(UserError, match=line) as error:
        WithMask(Other(), "x").reset()
    assert "\n" not in str(error.value)


class Robot(gymnasium.Env):
    """Its action is a dictionary of a choice from 2 on and of two tuples of numbers."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Dict(
        {
            "gear": spaces.Discrete(3, start=2),
            "arms": spaces.Tuple(
                [spaces.Box(-1, 1, (1,)), spaces.MultiDiscrete([2, 2])]
            ),
        }
    )

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.action = action
        first = action["arms"][0][0]
        return np.float32([action["gear"], first]), 0.0, False, False, {}

    def render(self):
        return np.full((4, 6, 3), self.action["gear"], np.uint8)


def test_actions_of_several_parts_arrive_as_members_of_their_space():
    make = lambda seed: Robot
    with contextlib.closing(Processes("gym:Robot", make, 2, 0, OPTIONS)) as environment:
        spec = environment.action_spec()
        assert spec["gear"].num_values == 3
        environment.reset()
        arms = np.float32([[0.5], [-0.5]]), np.int32([[0, 1], [1, 0]])
        action = {"gear": np.int32([0, 2]), "arms": arms}
        observation = environment.step(action).observation
        np.testing.assert_array_equal(observation, np.float32([[2, 0.5], [4, -0.5]]))
        assert not hasattr(environment, "render")


def test_pictures_of_an_environment_that_can_draw():
    make = lambda seed: lambda: Robot("rgb_array")
    with contextlib.closing(Processes("gym:Robot", make, 2, 0, OPTIONS)) as environment:
        environment.reset()
        with pytest.raises(UserError, match="cannot draw: AttributeError.*MUJOCO_GL"):
            environment.render()
        arms = np.zeros((2, 1), np.float32), np.zeros((2, 2), np.int32)
        environment.step({"gear": np.int32([1, 2]), "arms": arms})
        picture = environment.render()
        assert picture.shape == (4, 6, 3) and (picture == 3).all()
        assert environment.render_fps == 12.0
        environment.step({"gear": np.int32([1, 2]), "arms": arms})


def test_where_envpool_draws_nothing_gymnasiums_twin_does(capsys):
    stored = types.SimpleNamespace(env="CartPole-v1", config={"env": {}})
    with contextlib.closing(environments.to_film(stored, 0)) as environment:
        assert isinstance(environment, Processes)
        assert environment.render_fps == 50.0
    assert "pictures of gymnasium's CartPole-v1" in capsys.readouterr().out
    stored.env = "Catch-v0"  # gymnasium has none
    with contextlib.closing(environments.to_film(stored, 0)) as environment:
        assert not isinstance(environment, Processes)
