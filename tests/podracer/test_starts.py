"""Choices that an environment counts from another number than 0."""

import pickle

import numpy as np
import pytest
from gymnasium import spaces

from podracer import starts
from podracer.runs import spec_json
from podracer.transformations import stacked_spec
from sebulba.host_environments import spaces as host_spaces

SPACE = spaces.Dict(
    {
        "one": spaces.Discrete(3, start=-1),
        "parts": spaces.Tuple(
            [spaces.MultiDiscrete([2, 3], start=[5, -7]), spaces.Discrete(4)]
        ),
    }
)


@pytest.mark.parametrize("stored", [False, True])
def test_a_spaces_members_are_what_a_run_saw(stored):
    spec = host_spaces.spec_of(SPACE)
    if stored:
        spec = spec_json.decode(spec_json.encode(spec))
    SPACE.seed(0)
    for _ in range(20):
        member = SPACE.sample()
        seen = host_spaces.as_spec(SPACE, member)
        of_load = spec_json.as_spec(spec, member)
        assert seen["one"] == of_load["one"] in (0, 1, 2)
        for x, y in zip(seen["parts"], of_load["parts"], strict=True):
            np.testing.assert_array_equal(x, y)
        action = starts.own(spec["one"], np.int32(seen["one"]))
        assert action == member["one"] and SPACE["one"].contains(action)
        actions = starts.own(spec["parts"][0], seen["parts"][0])
        assert SPACE["parts"][0].contains(actions)


@pytest.mark.parametrize(
    ("member", "line"),
    [
        ({"one": 2, "parts": ([5, -7], 0)}, "has 2; it must be from -1 to 1"),
        ({"one": -2, "parts": ([5, -7], 0)}, "has -2; it must be from -1 to 1"),
        ({"one": 0, "parts": ([5, -4], 0)}, "has -4; it must be from -7 to -5"),
        ({"one": 0, "parts": ([5, -5], 4)}, "has 4; it must be from 0 to 3"),
        ({"one": 0.5, "parts": ([5, -5], 3)}, "has 0.5; it must be int32"),
        ({"one": np.nan, "parts": ([5, -5], 3)}, "has nan; it must be int32"),
    ],
)
def test_what_is_no_choice_is_one_line(member, line):
    with pytest.raises(ValueError, match=f"^an observation {line}$"):
        spec_json.as_spec(host_spaces.spec_of(SPACE), member)


@pytest.mark.parametrize(
    "plain",
    [
        {"values": 3, "dtype": "int32", "start": 2**70},
        {"values": 3, "dtype": "int32", "start": "many"},
        {"shape": [2], "dtype": "int32", "minimum": 0, "maximum": 2, "start": [0] * 3},
    ],
)
def test_a_damaged_start_is_no_spec(plain):
    with pytest.raises((ValueError, OverflowError, TypeError)):
        spec_json.decode(plain)


def test_a_start_is_pickled_and_stacked():
    one, (several, _) = host_spaces.spec_of(SPACE).values()
    for spec in (one, several, several.replace(dtype=np.int64)):
        copy = pickle.loads(pickle.dumps(spec))
        assert copy == spec and np.array_equal(copy.start, spec.start)
    assert stacked_spec(several, 2).start.tolist() == [5, -7, 5, -7]
