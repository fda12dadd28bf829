"""`check`: correct environments pass, and each rule is tested with one that breaks it."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

import envs_jax
from envs_jax import (
    Catch,
    ProtocolError,
    TimeLimit,
    Wrapper,
    check,
    check_structure,
)
from envs_jax.catch import State
from envs_jax.environment import restart, transition


@dataclasses.dataclass(frozen=True)
class OneBall(Catch):
    """The ball always falls in the first column: no keys needed, and fast to compile."""

    def initial_state(self, key):
        state = State(jnp.int32(0), jnp.int32(0), jnp.int32(1))
        return state, restart(self._board(state))


ONE_BALL = OneBall(rows=4, columns=3)


@dataclasses.dataclass(frozen=True)
class Broken(Wrapper):
    """`first` and `later` change the results of initial_state and step."""

    environment: Any = ONE_BALL
    first: Callable = lambda state, timestep: (state, timestep)
    later: Callable = lambda state, timestep: (state, timestep)
    observation: Any = None  # replaces the correct spec
    action: Any = None  # likewise

    def initial_state(self, key):
        return self.first(*super().initial_state(key))

    def step(self, key, state, action):
        return self.later(*super().step(key, state, action))

    def observation_spec(self):
        return self.observation or super().observation_spec()

    def action_spec(self):
        return self.action or super().action_spec()


def replace(**fields):
    """Replaces fields of the timestep by functions of the timestep."""

    def change(state, timestep):
        new = {name: function(timestep) for name, function in fields.items()}
        return state, timestep._replace(**new)

    return change


@dataclasses.dataclass(frozen=True)
class Everything:
    """Uses all that the protocol allows: a dictionary, floats, a key in the state."""

    def initial_state(self, key):
        return [key, jnp.zeros(2)], restart(self._observation(jnp.zeros(2)))

    def step(self, key, state, action):
        position = jnp.clip(state[1] + action, -3, 3)
        noise = jax.random.normal(key)
        state = [state[0], position]
        return state, transition(noise, self._observation(position))._replace(
            discount=jnp.float32(0.5)
        )

    def observation_spec(self):
        return {
            "pixels": specs.Array((2, 2), np.uint8),
            "position": specs.BoundedArray((2,), np.float32, -3, [3, np.inf]),
        }

    def action_spec(self):
        return specs.BoundedArray((2,), np.float32, [-1, -np.inf], [1, np.inf])

    def _observation(self, position):
        return {"pixels": jnp.zeros((2, 2), jnp.uint8), "position": position}


@dataclasses.dataclass(frozen=True)
class Echo:
    """Observes its last action, so that `check` compares actions with the spec `seen`."""

    action: specs.BoundedArray
    seen: specs.BoundedArray

    def initial_state(self, key):
        nothing = np.clip(0, self.seen.minimum, self.seen.maximum)
        return (), restart(nothing.astype(self.seen.dtype))

    def step(self, key, state, action):
        return (), transition(0.0, action)

    def observation_spec(self):
        return self.seen

    def action_spec(self):
        return self.action


def bounded(minimum, maximum, dtype=np.float32):
    return specs.BoundedArray((2,), dtype, minimum, maximum)


@pytest.mark.core
@pytest.mark.parametrize("name", envs_jax.ENVIRONMENTS)
def test_named_environments_follow_the_protocol(name):
    nothing_random = "bandit", "deep-sea", "grid-empty"
    check(envs_jax.make(name), deterministic=name in nothing_random)


def test_all_that_is_allowed_passes():
    check(Everything())


def test_automatic_resets_pass_and_may_be_deterministic():
    check(envs_jax.AutoReset(ONE_BALL), steps=10, deterministic=True)


ACTIONS = [  # and specs that contain them
    (specs.DiscreteArray(3), specs.DiscreteArray(3)),
    (bounded(0, [2, 4], np.int32), bounded(0, [2, 4], np.int32)),
    (bounded(-2, [2, 0.1]), bounded(-2, [2, 0.1])),
    (bounded([-np.inf, -1e30], [np.inf, 3]), bounded(-1, [1, 3])),
    (
        bounded([2_000, -np.inf], [np.inf, -2_000]),
        bounded([2e3, -2_001], [2_001, -2e3]),
    ),
]


@pytest.mark.core
@pytest.mark.parametrize("action, seen", ACTIONS)
def test_random_actions_keep_to_their_bounds(action, seen):
    check(Echo(action, seen), steps=50, deterministic=True)


@pytest.mark.parametrize("action, seen", ACTIONS[1:3])
def test_random_actions_reach_their_bounds(action, seen):
    narrow = seen.replace(maximum=0.9 * seen.maximum)
    with pytest.raises(ProtocolError, match="expected a value within the spec's bound"):
        check(Echo(action, narrow), steps=50, deterministic=True)


def python_if(state, timestep):
    return (state, timestep) if timestep.reward > 0 else (None, timestep)


class Remembering(Catch):
    """Keeps its board to itself, as an environment in Python does."""

    def initial_state(self, key):
        vars(self)["board"] = np.zeros((10, 5), np.float32)
        return super().initial_state(key)

    def step(self, key, state, action):
        vars(self)["board"] = self.board + 1
        return super().step(key, state, action)


class Caching(Catch):
    """Computes the boards' centre when it is first used."""

    def step(self, key, state, action):
        vars(self).setdefault("centre", np.zeros(2))
        return super().step(key, state, action)


class Misfit(Catch):
    """The bounds do not fit its shape."""

    def observation_spec(self):
        return specs.BoundedArray((10, 5), np.float32, [0, 0], 1)


class Unsure(Catch):
    """Says how much of its goal is reached."""

    def succeeded(self, state):
        return jnp.float32(0.5)


STRUCTURE = {
    "TimeLimit(Unsure).succeeded is float32[], expected bool[]": TimeLimit(Unsure(), 5),
    "Remembering.board is set by initial_state or step, expected pure": TimeLimit(
        Remembering(), 5
    ),
    "Misfit.observation_spec: ValueError: `minimum` is incompatible": Misfit(),
    "object.initial_state is missing": object(),
    "observation_spec has int, expected dm_env's Array": Broken(observation=(4, 3)),
    "action_spec has Array, expected dm_env's BoundedArray": Broken(
        action=specs.Array((), np.int32)
    ),
    "action_spec has integers from [1, 0], expected from 0": Broken(
        action=bounded([1, 0], 3, np.int32)
    ),
    "step: TracerBoolConversionError: ": Broken(later=python_if),
    "initial_state returns TimeStep, expected (state, dm_env.TimeStep)": Broken(
        first=lambda state, timestep: timestep
    ),
    "step returns tuple, expected (state, dm_env.TimeStep)": Broken(
        later=lambda state, timestep: (timestep, state)
    ),
    "timestep.reward is absent, expected float32[]": Broken(
        first=lambda state, timestep: (state, dm_env.restart(timestep.observation))
    ),
    "timestep.reward is float32[1], expected float32[]": Broken(
        later=replace(reward=lambda t: t.reward[None])
    ),
    "timestep.step_type is int8[], expected int32[]": Broken(
        later=replace(step_type=lambda t: t.step_type.astype(jnp.int8))
    ),
    "timestep.discount is bool[], expected float32[]": Broken(
        later=replace(discount=lambda t: t.discount > 0)
    ),
    "timestep.observation is float32[4, 3], expected float64[4, 3]": Broken(
        observation=specs.Array((4, 3), np.float64)
    ),
    "timestep.observation['board'] is absent, expected float32[4, 3]": Broken(
        observation={"board": specs.Array((4, 3), np.float32)}
    ),
    "state.row is float32[], expected int32[]": Broken(
        later=lambda state, timestep: (
            state._replace(row=state.row * 1.0),
            timestep,
        )
    ),
    "step: state is PyTreeDef((*, *)), expected PyTreeDef([*, *])": Broken(
        Everything(), later=lambda state, timestep: (tuple(state), timestep)
    ),
}


@pytest.mark.parametrize("message", STRUCTURE)
def test_broken_structure_is_named(message):
    with pytest.raises(ProtocolError, match=re.escape(message)) as error:
        check_structure(STRUCTURE[message])
    assert "\n" not in str(error.value)


def test_an_attribute_may_be_a_cache():
    check_structure(Caching())


def where(condition, value, otherwise):
    return jnp.where(condition, value, otherwise).astype(otherwise.dtype)


def impure():
    """Its result depends on how often it has been traced."""
    calls = itertools.count()
    return replace(reward=lambda t: t.reward + 1.0 * next(calls))


def callback(state, timestep):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    reward = jax.pure_callback(lambda reward: reward, shape, timestep.reward)
    return state, timestep._replace(reward=reward)


def corner(value):
    """An observation with `value` in its corner."""
    return lambda t: t.observation.at[0, 0].set(value)


VALUES = {
    "step_type of timestep 0 is 1, expected 0 (FIRST) from initial": Broken(
        first=replace(step_type=lambda t: t.step_type + 1)
    ),
    "step_type of timestep 3 is 0, expected 0 (FIRST) from initial": Broken(
        later=replace(step_type=lambda t: where(t.last(), 0, t.step_type))
    ),
    "step_type of timestep 3 is 3, expected 0 (FIRST), 1 (MID) or 2": Broken(
        later=replace(step_type=lambda t: where(t.last(), 3, t.step_type))
    ),
    "reward of timestep 0 is 1.0, expected 0 at FIRST": Broken(
        first=replace(reward=lambda t: t.reward + 1)
    ),
    "reward of timestep 3 is inf, expected a finite number": Broken(
        later=replace(reward=lambda t: where(t.last(), jnp.inf, t.reward))
    ),
    "discount of timestep 0 is 0.0, expected 1 at FIRST": Broken(
        first=replace(discount=lambda t: t.discount - 1)
    ),
    "discount of timestep 1 is 2.0, expected 0 to 1": Broken(
        later=replace(discount=lambda t: 2 * t.discount)
    ),
    "discount of timestep 3 is nan, expected 0 to 1": Broken(
        later=replace(discount=lambda t: where(t.last(), jnp.nan, t.discount))
    ),
    "observation[0, 0] of timestep 1 is nan, expected a finite number": Broken(
        later=replace(observation=corner(jnp.nan))
    ),
    "observation[0, 0] of timestep 1 is -1.0, expected a value within": Broken(
        later=replace(observation=corner(-1))
    ),
    "expected the same from the same inputs, batched or not": Broken(later=impure()),
    "in jit, vmap and scan: ": Broken(later=callback),
    "8 keys give equal timesteps, expected the opposite": ONE_BALL,
}


@pytest.mark.parametrize("message", VALUES)
def test_broken_values_are_named(message):
    with pytest.raises(ProtocolError, match=re.escape(message)) as error:
        check(VALUES[message], steps=10)
    assert "\n" not in str(error.value)


def test_a_random_environment_is_not_deterministic():
    with pytest.raises(ProtocolError, match="8 keys give different timesteps"):
        check(Catch(), steps=4, deterministic=True)


@pytest.mark.parametrize("name", envs_jax.ENVIRONMENTS)
def test_types_are_the_same_where_jax_has_64_bits(name):
    """JAX_ENABLE_X64 changes the default types, and not those of an environment."""

    def first_and_next(environment):
        key = jax.eval_shape(jax.random.key, 0)
        first = jax.eval_shape(environment.initial_state, key)
        spec = environment.action_spec()
        action = jax.ShapeDtypeStruct(spec.shape, spec.dtype)
        return first, jax.eval_shape(environment.step, key, first[0], action)

    environment = envs_jax.make(name)
    expected = first_and_next(environment)
    jax.config.update("jax_enable_x64", True)
    try:
        got = first_and_next(environment)
    finally:
        jax.config.update("jax_enable_x64", False)
    (state, first), (next_state, later) = got
    for pair in (
        [state, next_state],  # which a loop carries
        [first, expected[0][1]],
        [later, expected[1][1]],
    ):
        for x, y in zip(*map(jax.tree.leaves, pair), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
