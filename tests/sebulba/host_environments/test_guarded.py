"""Return values that gymnasium's interface does not have, refused in one line."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from podracer.errors import UserError
from sebulba.host_environments.guarded import guarded

SEEN = np.zeros(2, np.float32)


class Given(gymnasium.Env):
    """Returns what it was given."""

    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, after=None, first=(SEEN, {})):
        self._after, self._first = after, first

    def reset(self, *, seed=None, options=None):
        return self._first

    def step(self, action):
        return self._after


@pytest.mark.parametrize(
    ("first", "after", "line"),
    [
        (SEEN, None, r"reset\(\) returned array\(.*; it must return \(observation, "),
        (
            (SEEN, {}),
            (SEEN, 1.0, False, {}),
            r"step\(\) returned .*, terminated, trunc",
        ),
        (
            (SEEN, {}),
            None,
            r"step\(\) returned None; it must return \(observation, rew",
        ),
        (
            (SEEN, {}),
            (SEEN, 1.0, np.array([False, True]), False, {}),
            r"terminated is array\(\[False, True\]\); it must be True or False",
        ),
        ((SEEN, {}), (SEEN, 1.0, False, [], {}), r"truncated is \[\]; it must be True"),
    ],
)
def test_another_interface_is_one_line(first, after, line):
    environment = guarded("given", lambda: Given(after, first), True)
    with pytest.raises(UserError, match=f"^given: {line}") as error:
        environment.reset()
        environment.step(0)
    assert "\n" not in str(error.value)


def test_numbers_in_arrays_are_numbers():
    """As libraries of tensors return them; a vector would stack them to [B, 1]."""
    after = SEEN, np.array([2.0]), np.array([True]), np.array([[False]]), {}
    environment = guarded("given", lambda: Given(after), True)
    environment.reset()
    assert repr(environment.step(0)[1:]) == "(2.0, True, False, {})"
