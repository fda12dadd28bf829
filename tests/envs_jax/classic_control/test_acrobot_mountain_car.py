"""Acrobot and both mountain cars equal gymnasium's, step by step from equal states."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import Acrobot, MountainCar, MountainCarContinuous, TimeLimit
from envs_jax.classic_control import acrobot, mountain_car

STEPS = 1_000

ACROBOT = ("Acrobot-v1", Acrobot(), acrobot.State, 1e-3)  # float64 there, at 28 rad/s
CAR = ("MountainCar-v0", MountainCar(), mountain_car.State, 1e-6)
CONTINUOUS = (
    "MountainCarContinuous-v0",
    MountainCarContinuous(),
    mountain_car.State,
    1e-6,
)
ALL = [ACROBOT, CAR, CONTINUOUS]


def random_actions(space, random):
    if isinstance(space, gymnasium.spaces.Discrete):
        return random.integers(0, space.n, STEPS, np.int32)
    return random.uniform(-1.5, 1.5, (STEPS, 1)).astype(np.float32)  # some beyond 1


def unroll(reference, actions):
    """Plays random episodes; yields what is before and after each step."""
    reference.reset(seed=0)
    for action in actions:
        reference.state = np.float32(reference.state).astype(float)
        before = reference.state
        observation, reward, terminated, *_ = reference.step(action)
        yield before, observation, reward, terminated
        if terminated:
            reference.reset()


def scattered(name, reference, actions, random):
    """Single steps from random states: fast ones, at the wall and near the goal."""
    low, high = {
        "Acrobot-v1": ([-np.pi, -np.pi, -12, -28], [np.pi, np.pi, 12, 28]),
    }.get(name, ([-1.2, -0.07], [0.6, 0.07]))
    for before in random.uniform(low, high, (STEPS, len(low))):
        reference.reset()
        reference.state = np.float32(before).astype(float)
        before = reference.state
        observation, reward, terminated, *_ = reference.step(actions[0])
        yield before, observation, reward, terminated
        actions = np.roll(actions, -1, axis=0)


@pytest.mark.parametrize("where", ["in episodes", "from random states"])
@pytest.mark.parametrize("name, environment, state, tolerance", ALL)
def test_equals_gymnasium(name, environment, state, tolerance, where):
    reference = gymnasium.make(name).unwrapped
    random = np.random.default_rng(0)
    actions = random_actions(reference.action_space, random)
    if where == "from random states":
        steps = scattered(name, reference, actions, random)
    else:
        steps = unroll(reference, actions)
    before, after, reward, terminated = map(np.array, zip(*steps, strict=True))

    step = jax.jit(jax.vmap(environment.step, (None, 0, 0)))
    _, timestep = step(jax.random.key(0), state(*np.float32(before.T)), actions)
    np.testing.assert_allclose(timestep.observation, after, tolerance, tolerance)
    np.testing.assert_array_equal(timestep.last(), terminated)
    np.testing.assert_array_equal(timestep.discount, 1 - terminated)
    np.testing.assert_allclose(timestep.reward, reward, rtol=1e-6, atol=1e-6)
    assert where == "in episodes" or 10 < terminated.sum() < STEPS


@pytest.mark.parametrize("name, environment, state, tolerance", ALL)
def test_describes_itself_as_gymnasium(name, environment, state, tolerance):
    reference = gymnasium.make(name)
    assert environment.time_limit == reference.spec.max_episode_steps
    spec, space = environment.observation_spec(), reference.observation_space
    assert spec.dtype == space.dtype
    np.testing.assert_array_equal(spec.minimum, space.low)
    np.testing.assert_array_equal(spec.maximum, space.high)
    spec, space = environment.action_spec(), reference.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        assert spec.num_values == space.n
    else:
        assert spec.shape == space.shape and spec.dtype == space.dtype
        np.testing.assert_array_equal((spec.minimum, spec.maximum), (-1, 1))


@pytest.mark.core
def test_starts_are_random():
    keys = jax.random.split(jax.random.key(0), 4_096)
    for environment, low, high in (
        (Acrobot(), -0.1, 0.1),
        (MountainCar(), -0.6, -0.4),
        (MountainCarContinuous(), -0.6, -0.4),
    ):
        state, timestep = jax.vmap(environment.initial_state)(keys)
        assert timestep.first().all()
        moving = [x for x in state if np.any(x)]
        assert len(moving) == (4 if isinstance(environment, Acrobot) else 1)
        for x in moving:  # uniform
            width = high - low
            assert low <= x.min() < low + 0.01 * width
            assert high - 0.01 * width < x.max() <= high
            np.testing.assert_allclose(x.mean(), (low + high) / 2, atol=0.05 * width)


@pytest.mark.core
@pytest.mark.parametrize("environment", [each[1] for each in ALL])
def test_the_time_limit_truncates(environment):
    limited = TimeLimit(environment, environment.time_limit)
    idle = jnp.zeros(environment.action_spec().shape)
    if environment.action_spec().dtype == np.int32:
        idle = jnp.int32(1)

    @jax.jit
    def play(key):
        state, _ = limited.initial_state(key)
        return jax.lax.scan(
            lambda state, _: limited.step(key, state, idle),
            state,
            length=environment.time_limit,
        )[1]

    timesteps = play(jax.random.key(0))
    assert timesteps.mid()[:-1].all() and timesteps.last()[-1]
    np.testing.assert_array_equal(timesteps.discount, 1)
