"""What any environment on the host does against the protocol."""

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs

from podracer.errors import UserError
from sebulba.host_environments import protocol
from tests.environments import HostCounter


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        (
            {"observation_spec": lambda: specs.Array((1,), jax.numpy.bfloat16)},
            "observation_spec has dtype bfloat16; declare and give float32",
        ),
    ],
)
def test_what_an_environment_declares_is_checked_first(monkeypatch, fault, line):
    environment = HostCounter()
    for name, value in fault.items():
        monkeypatch.setattr(environment, name, value)
    with pytest.raises(UserError, match=line):
        protocol.timestep_checker(environment)


def with_fields(**fields):
    return lambda told: told._replace(**fields)


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        (tuple, "a timestep is (array(["),
        (
            lambda _: dm_env.restart(0.0),
            "step_type is <StepType.FIRST: 0>; it must be an",
        ),
        (with_fields(reward=None), "reward is None; it must be an array of numbers"),
        (
            with_fields(discount=[1.0] * 4),
            "discount is [1.0, 1.0, 1.0, 1.0]; it must be an",
        ),
        (
            with_fields(reward=np.array(["0"] * 4)),
            "reward is array(['0', '0', '0', '0']",
        ),
        (
            with_fields(reward=np.zeros((4, 1))),
            "reward has shape (4, 1); it must have (4,)",
        ),
        (
            with_fields(discount=np.ones(2)),
            "discount has shape (2,); it must have (4,)",
        ),
        (
            with_fields(step_type=np.int32([0, 1, 3, 1])),
            "step_type is 3; it must be 0 (F",
        ),
        (
            with_fields(step_type=np.int32([0, -1, 1, 1])),
            "step_type is -1; it must be 0 (F",
        ),
        (
            with_fields(discount=np.float32([1, 1, 1, 2])),
            "discount is 2.0; it must be from 0",
        ),
        (
            with_fields(discount=np.float32([1, -1, 1, 1])),
            "discount is -1.0; it must be from",
        ),
        (
            with_fields(discount=np.float32([1, 1, 1, np.nan])),
            "discount is nan; it must be",
        ),
        (
            lambda told: told._replace(
                step_type=np.zeros(4, np.int32), reward=np.float32([0, 0, 3, 0])
            ),
            "reward is 3.0; it must be 0 at FIRST",
        ),
        (
            lambda told: told._replace(
                step_type=np.int32([1, 1, 1, 0]),
                reward=np.zeros(4),
                discount=np.zeros(4),
            ),
            "discount is 0.0; it must be 1 at FIRST",
        ),
        (
            with_fields(observation=np.zeros((4, 2))),
            "observation has shape (2,); declared is",
        ),
    ],
)
def test_timesteps_of_any_environment_keep_to_the_protocol(lie, line):
    environment = HostCounter()
    with pytest.raises(UserError) as error:
        protocol.timestep_checker(environment)(lie(environment.reset()))
    assert str(error.value).startswith(f"HostCounter: {line}")
    assert str(error.value).endswith("; correct the environment, see HostEnvironment")


def test_right_timesteps_pass_whatever_their_precision():
    environment = HostCounter()
    check = protocol.timestep_checker(environment)
    told = environment.reset()
    for number in range(20):
        wider = told._replace(
            reward=told.reward.astype(float),
            step_type=told.step_type.astype(np.int64),
        )
        check(wider if number % 2 else told)
        told = environment.step(np.zeros(4, np.int32))


MIDS = np.ones(4, np.int32)


@pytest.mark.parametrize(
    ("before", "lie", "line"),
    [
        (
            (),
            with_fields(step_type=MIDS),
            "step_type is 1 at a reset; it must be 0 (FIRST)",
        ),
        (
            (with_fields(), with_fields(step_type=np.int32([1, 1, 2, 1]))),
            with_fields(step_type=np.int32([1, 1, 2, 1])),
            "step_type is 2 after LAST; it must be 0 (FIRST)",
        ),
        (
            (with_fields(),),
            with_fields(reward=np.zeros(4, int)),
            "reward has dtype int64; before it had float32",
        ),
        (
            (with_fields(),),
            with_fields(observation=np.full((4, 1), 2**33 + 5)),
            "observation has 8589934597, which needs 64 bits; give float32",
        ),
    ],
)
def test_timesteps_follow_one_another(before, lie, line):
    environment = HostCounter()
    told = environment.reset()
    check = protocol.timestep_checker(environment)
    for earlier in before:
        check(earlier(told))
    with pytest.raises(UserError) as error:
        check(lie(told))
    assert str(error.value).startswith(f"HostCounter: {line}; correct the environment")


@pytest.mark.parametrize(
    ("snapshot", "line"),
    [
        (
            {"rng": np.zeros(2, np.uint64)},
            "snapshot['rng'] is uint64; it must be an arr",
        ),
        ((np.float64(0.1),), "snapshot[0] is float64; it must be"),
        ([0.1], "snapshot[0] is float; it must be"),
        ({"level": "easy"}, "snapshot['level'] is str; it must be"),
    ],
)
def test_what_a_checkpoint_cannot_keep_is_named(snapshot, line):
    with pytest.raises(UserError) as error:
        protocol.check_snapshot("Own", snapshot)
    assert str(error.value).startswith(f"Own: {line}")


def test_what_a_checkpoint_keeps_passes():
    numbers = np.zeros(2, np.uint64).view(np.uint32), np.float32(0.1), 3, True, None
    protocol.check_snapshot("Own", (numbers, jax.random.key(0), jax.numpy.ones(2)))
