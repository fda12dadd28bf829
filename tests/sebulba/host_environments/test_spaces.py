"""Spaces as specs, and their members; what is not supported is refused in one line."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from podracer.errors import UserError
from sebulba.host_environments.guarded import guarded
from sebulba.host_environments.spaces import (
    action_spec,
    as_spec,
    channels_last,
    spec_of,
)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary(3),
        spaces.Dict(left=spaces.MultiBinary(2)),
        spaces.Box(np.arange(1, 41), np.arange(2, 42), dtype=int),
        spaces.Box(0, 2**40, dtype=np.int64),
    ],
)
def test_other_actions_are_refused_in_one_line(space):
    with pytest.raises(
        UserError, match="^Some-v0 has actions .*choose another"
    ) as error:
        action_spec("Some-v0", space)
    assert "\n" not in str(error.value)


def test_integers_beyond_32_bits_are_float32():
    """JAX would keep the lower 32 bits: 5 of 2^33 + 5."""
    wide = spaces.Box(0, 2**40, (2,), np.int64)
    spec, found = spec_of(wide), as_spec(wide, np.full((3, 2), 2**33 + 5))
    assert spec.dtype == found.dtype == np.float32 and (found == 2.0**33).all()
    assert (spec.minimum == 0).all() and (spec.maximum == 2.0**40).all()
    narrow = spaces.Box(-5, 2**31 - 1, (2,), np.int64)
    assert spec_of(narrow).dtype == as_spec(narrow, np.ones((3, 2), int)).dtype == int


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_come_last(channels):
    images = np.arange(2 * channels * 5 * 6, dtype=np.uint8).reshape(2, channels, 5, 6)
    found = channels_last(images)
    assert found.strides == (30 * channels, 6 * channels, channels, 1)
    np.testing.assert_array_equal(found, np.moveaxis(images, 1, -1))
    np.testing.assert_array_equal(found, jax.jit(channels_last)(images))


class Plain(gymnasium.Env):
    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)


class Key(spaces.Space):
    pass


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
        spaces.Dict(),
        spaces.Tuple([]),
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=spaces.Text(2))),
        spaces.Box(0, 1, (0,)),
        spaces.Box(0, 1, (3, 0)),
        Key(),
        None,
        3,
    ],
)
@pytest.mark.parametrize("field", ["observation_space", "action_space"])
def test_spaces_that_are_not_supported_are_one_line(field, space):
    kind = type("Odd", (Plain,), {field: space})
    with pytest.raises(UserError) as error:
        guarded("odd", kind, True)
    line = str(error.value)
    assert line.startswith(f"odd has {field.removesuffix('_space')}s ")
    assert "\n" not in line and "supported" in line
