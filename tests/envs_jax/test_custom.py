"""A user's own environment is made ready, or one line says what is wrong with it."""

import numpy as np
import pytest

from envs_jax import Catch, ProtocolError, TimeLimit, custom


class Limited(Catch):
    """Its attribute `time_limit` is set from outside."""

    time_limit = None


@pytest.mark.parametrize("limit", [7, np.int32(7), None])
def test_the_attribute_time_limit_is_applied(monkeypatch, limit):
    monkeypatch.setattr(Limited, "time_limit", limit)
    environment = Limited()
    expected = TimeLimit(environment, 7) if limit else environment
    assert custom.ready(environment) == expected


@pytest.mark.parametrize("limit", ["7", 0, 2**31, lambda self: 7])
def test_an_impossible_time_limit_is_named(monkeypatch, limit):
    monkeypatch.setattr(Limited, "time_limit", limit)
    with pytest.raises(ProtocolError, match="^Limited.time_limit is .*1 to 2147483647"):
        custom.ready(Limited())
