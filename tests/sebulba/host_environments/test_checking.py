"""What an environment returns against what it declares."""

import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from podracer.errors import UserError
from sebulba.host_environments import checking

IMAGE = spaces.Box(0, 255, (2, 2), np.uint8)
PLACE = spaces.Box(-1.0, 1.0, (2,), np.float32)


def complaint(space, value, reward=0.0, **settings):
    """The line of a checker at its first step; None if there is no complaint."""
    check = checking.checker("liar", checking.of_space(space), **settings)
    try:
        check(value, reward)
    except UserError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("liar: ")
        return str(error)


@pytest.mark.parametrize(
    ("space", "value", "line"),
    [
        (PLACE, np.zeros((1,), np.float32), "has shape (1,); declared is (2,)"),
        (PLACE, np.zeros((2, 1), np.float32), "has shape (2, 1); declared is (2,)"),
        (
            PLACE,
            np.float32([0, 1.5]),
            "observation[1] is 1.5, outside the declared -1 to",
        ),
        (PLACE, np.float32([np.nan, 0]), "observation[0] is nan, outside"),
        (PLACE, ["a", "b"], "of dtype <U1; declared is float32"),
        (PLACE, [[1], [1, 2]], "observation is not an array: [[1], [1, 2]]"),
        (PLACE, None, "observation is None"),
        (IMAGE, np.zeros((2, 2)), "has dtype float64; declared is uint8"),
        (
            IMAGE,
            np.full((2, 2), 300),
            "observation[0, 0] is 300, outside the declared 0",
        ),
        (IMAGE, np.full((2, 2), -1), "is -1, outside"),
        (
            spaces.Discrete(3, start=2),
            5,
            "observation is 5, outside the declared 2 to 4",
        ),
        (spaces.Discrete(3), np.float32(1), "has dtype float32; declared is int64"),
        (spaces.MultiDiscrete([2, 3]), [1, 3], "observation[1] is 3, outside"),
        (
            spaces.MultiBinary(2),
            [0, 2],
            "observation[1] is 2, outside the declared 0 to 1",
        ),
        (spaces.Dict(a=PLACE), {"a": [0.0, 9.0]}, "observation['a'][1] is 9"),
        (
            spaces.Dict(a=PLACE),
            {"b": [0.0, 0.0]},
            "has the members ['b']; declared are",
        ),
        (spaces.Dict(a=PLACE), [0.0, 0.0], "declared are members ['a']"),
        (spaces.Tuple([PLACE, IMAGE]), ([0.0, 0.0],), "declared are members [0, 1]"),
    ],
)
def test_a_lie_is_one_line(space, value, line):
    assert line in complaint(space, value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (PLACE, np.float64([-1, 1.000001])),  # rounding
        (PLACE, [0, 1]),
        (spaces.Box(-np.inf, np.inf, (2,)), [-np.inf, 1e30]),
        (IMAGE, np.full((2, 2), 255)),
        (spaces.Discrete(3, start=2), np.int64(4)),
        (spaces.MultiBinary(2), [True, False]),
        (spaces.MultiDiscrete([2, 3], start=[1, 1]), [2, 3]),
        (spaces.Dict(a=PLACE, b=spaces.Discrete(2)), {"a": [0.0, 0.0], "b": 1}),
    ],
)
def test_the_truth_passes(space, value):
    assert complaint(space, value) is None


def test_bounds_alone_can_be_left_unchecked():
    wide, flat = np.float32([0, 7]), np.float32([7])
    assert "--env.no-check-bounds" in complaint(PLACE, wide)
    assert complaint(PLACE, wide, bounds=False) is None
    assert "has shape" in complaint(PLACE, flat, bounds=False)


@pytest.mark.parametrize(
    ("reward", "line"),
    [
        (np.nan, "reward is nan; it must be finite"),
        (-np.inf, "reward is -inf; it must be finite"),
        (None, "reward is None; it must be a number"),
        ([1.0, 2.0], "it must be a number"),
    ],
)
def test_rewards_are_finite_numbers(reward, line):
    assert line in complaint(PLACE, np.zeros(2), reward)


def test_a_batch_has_its_axis():
    declared = checking.of_spec({"x": specs.BoundedArray((2,), np.int32, 0, 3)})
    check = checking.checker("liar", declared, (4,))
    check({"x": np.zeros((4, 2), np.int32)}, np.zeros(4))
    with pytest.raises(UserError, match=r"observation\['x'\]\[3, 1\] is 9"):
        check({"x": np.int32([[0, 0]] * 3 + [[0, 9]])}, np.zeros(4))
    with pytest.raises(UserError, match="reward is nan"):
        check({"x": np.zeros((4, 2), np.int32)}, np.float32([0, 0, np.nan, 0]))
    for shape, said in {
        (5, 2): r"\(5, 2\); declared is \(4, 2\)",
        (2,): r"\(2,\); declared is \(4, 2\)",
        (4, 3): r"\(3,\); declared is \(2,\)",
    }.items():
        with pytest.raises(UserError, match=f"has shape {said}"):
            check({"x": np.zeros(shape, np.int32)}, np.zeros(4))


def test_the_first_steps_are_checked_and_each_thousandth():
    check = checking.checker("liar", checking.of_space(PLACE))
    wrong = []
    for step in range(1, 3_001):
        try:
            check(np.zeros(3), 0.0)
        except UserError:
            wrong.append(step)
    assert wrong == [*range(1, 21), 1_000, 2_000, 3_000]


@pytest.mark.parametrize(
    ("spec", "action", "line"),
    [
        (
            specs.DiscreteArray(3),
            [0, 3],
            r"action\[1\] is 3, outside the declared 0 to 2",
        ),
        (specs.DiscreteArray(3), [[0], [1]], r"action has shape \(2, 1\)|\(1,\); decl"),
        (
            specs.DiscreteArray(3),
            [0.0, 1.0],
            "action has dtype float64; declared is int",
        ),
        (
            specs.BoundedArray((1,), np.float32, -1, 1),
            [[np.nan], [0]],
            "action.* is nan",
        ),
    ],
)
def test_actions_of_the_agent(spec, action, line):
    check = checking.action_checker("tried", spec, (2,))
    with pytest.raises(UserError, match=f"tried: {line}.*correct the agent"):
        check(np.array(action))


def test_continuous_actions_may_be_out_of_bounds():
    spec = specs.BoundedArray((1,), np.float32, -1, 1)
    checking.action_checker("tried", spec, (2,))(np.float32([[5.0], [-5.0]]))
