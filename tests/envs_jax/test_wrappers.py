"""Time limits, automatic resets and batches, on Catch and CartPole."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from envs_jax import (
    AutoReset,
    Batched,
    CartPole,
    Catch,
    PooledReset,
    TimeLimit,
    auto_reset,
    batched,
    check_structure,
)


def keys(seed, *shape):
    return jax.random.split(jax.random.key(seed), shape)


@functools.partial(jax.jit, static_argnums=0)
def play(environment, keys, actions):
    """The FIRST timestep, then states and timesteps [steps, ...] after the actions."""

    def step(state, key_and_action):
        key, action = key_and_action
        state, timestep = environment.step(key, state, action)
        return state, (state, timestep)

    state, first = environment.initial_state(keys[0])
    return first, *jax.lax.scan(step, state, (keys[1:], actions))[1]


@pytest.mark.parametrize("limit, discount", [(1, 1), (3, 1), (9, 0), (20, 0)])
def test_time_limit_truncates_and_leaves_terminations_alone(limit, discount):
    length = min(limit, 9)  # an episode of Catch has 9 steps
    actions = jnp.ones(length, jnp.int32)
    _, _, timesteps = play(TimeLimit(Catch(), limit), keys(0, length + 1), actions)
    before = [1] * (length - 1)
    np.testing.assert_array_equal(timesteps.step_type, [*before, 2])
    np.testing.assert_array_equal(timesteps.discount, [*before, discount])


@pytest.mark.parametrize("limit", [0, 2**31])
def test_a_time_limit_is_one_that_int32_can_count(limit):
    with pytest.raises(ValueError, match=f"max_steps is {limit}; it must be from 1 to"):
        TimeLimit(Catch(), limit)
    check_structure(TimeLimit(Catch(), 2**31 - 1))


def test_auto_reset_from_every_position_of_an_episode():
    environment = AutoReset(Catch(rows=5))
    pattern = np.array([1, 1, 1, 2, 0] * 4)
    _, states, timesteps = play(environment, keys(0, 13), jnp.zeros(12, jnp.int32))
    np.testing.assert_array_equal(timesteps.step_type, pattern[:12])

    batched = jax.jit(Batched(environment).step)
    state = jax.tree.map(lambda leaf: leaf[:5], states)
    for t in range(6):
        state, timestep = batched(keys(t, 5), state, jnp.zeros(5, jnp.int32))
        np.testing.assert_array_equal(timestep.step_type, pattern[t + 1 : t + 6])


def test_the_step_after_last_is_a_new_initial_state_whatever_the_action():
    environment = Batched(AutoReset(Catch(rows=3)))
    same = keys(0, 1)[jnp.zeros(3, jnp.int32)]
    actions = jnp.array([[1, 1, 1], [1, 1, 1], [0, 1, 2]])
    first, states, timesteps = play(environment, jnp.stack([same] * 4), actions)
    np.testing.assert_array_equal(timesteps.step_type, [[1] * 3, [2] * 3, [0] * 3])
    np.testing.assert_array_equal(states.last, timesteps.last())
    again = jax.tree.map(lambda leaf: leaf[-1], timesteps)
    jax.tree.map(np.testing.assert_array_equal, again, first)


def test_auto_reset_is_applied_once():
    environment = auto_reset(Catch())
    assert auto_reset(environment) is environment == AutoReset(Catch())


def test_a_batch_equals_its_members():
    environment = AutoReset(TimeLimit(CartPole(), 20))
    actions = np.random.default_rng(0).integers(0, 2, (50, 3), np.int32)
    first, _, together = play(Batched(environment), keys(0, 51, 3), actions)
    assert together.first().sum() >= 6
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    for i in range(3):
        alone = play(environment, keys(0, 51, 3)[:, i], actions[:, i])
        jax.tree.map(lambda leaf, one, i=i: close(leaf[i], one), first, alone[0])
        jax.tree.map(lambda leaf, one, i=i: close(leaf[:, i], one), together, alone[2])


RESETS = {"full": None, "pool of 1": 1, "pool of 5": 5}


@pytest.mark.parametrize("pool", RESETS.values(), ids=RESETS)
def test_resets_draw_every_initial_state_equally_often(pool):
    """Catch's ball starts in one of 5 columns; with 4 rows an episode has 3 steps."""
    environment, steps, copies = batched(Catch(rows=4), pool), 200, 64
    actions = jnp.ones((steps, copies), jnp.int32)
    _, _, timesteps = play(environment, keys(0, steps + 1, copies), actions)
    kinds = np.tile([1, 1, 2, 0], steps // 4)[:, None]
    np.testing.assert_array_equal(
        timesteps.step_type, np.broadcast_to(kinds, (steps, 64))
    )
    boards = np.asarray(timesteps.observation)[timesteps.first()]
    balls = boards[:, 0].argmax(-1).reshape(-1, copies)  # [episodes, copies]
    if pool == 1:  # all begin at once, and so alike, but each time differently
        assert (balls == balls[:, :1]).all() and len(np.unique(balls)) == 5
        return
    share = np.bincount(balls.ravel(), minlength=5) / balls.size
    np.testing.assert_allclose(share, 0.2, atol=0.06)
    repeats = [(b[1:] == b[:-1]).mean() for b in (balls, balls.T)]
    np.testing.assert_allclose(
        repeats, 0.2 + 0.8 * np.array([0, (pool or np.inf) ** -1]), atol=0.07
    )


@pytest.mark.parametrize("pool", [1, 3])
def test_the_pool_does_not_affect_episodes_in_progress(pool):
    """Copies that are not reset keep their own rewards, ends and time limits."""
    bare, copies, steps = TimeLimit(Catch(rows=5), 3), 6, 40
    full, pooled = batched(bare), batched(AutoReset(bare), pool)
    assert pooled == PooledReset(bare, pool)
    actions = jnp.ones((steps, copies), jnp.int32)
    both = [play(e, keys(1, steps + 1, copies), actions)[2] for e in (full, pooled)]
    for x, y in zip(
        both[0][:1] + both[0][2:3], both[1][:1] + both[1][2:3], strict=True
    ):
        np.testing.assert_array_equal(x, y)
    assert both[1].first().any(1).sum() > 5


def test_a_pool_needs_an_episode():
    with pytest.raises(ValueError, match="pool_size is 0; it must be at least 1"):
        PooledReset(Catch(), 0)


@dataclasses.dataclass(frozen=True)
class Remembers(Catch):
    """Its state holds the action in the dtype of the spec, uint8."""

    def action_spec(self):
        return specs.DiscreteArray(3, np.uint8)

    def initial_state(self, key):
        state, timestep = super().initial_state(key)
        return (state, jnp.uint8(0)), timestep

    def step(self, key, state, action):
        inner, timestep = super().step(key, state[0], action.astype(jnp.int32))
        return (inner, action), timestep


@pytest.mark.parametrize("pool", [None, 2])
def test_actions_have_the_dtype_of_their_spec(pool):
    """Whatever an agent's are: they were int32, which the state here does not hold."""
    machine = batched(Remembers(), pool)
    state, _ = machine.initial_state(keys(0, 4))
    action = jnp.int32([0, 1, 2, 1])
    state, _ = jax.jit(machine.step)(keys(1, 4), state, action)
    found = state.inner[1]
    assert found.dtype == np.uint8 and (found == action).all()


@pytest.mark.parametrize(
    "action", [jnp.zeros((4, 3), jnp.int32), jnp.zeros(4), jnp.zeros((4, 3))]
)
def test_actions_of_another_spec_are_refused(action):
    machine = batched(Catch())
    state, _ = machine.initial_state(keys(0, 4))
    line = (
        rf"^an action is {action.dtype} .*; action_spec says int32 \(\): make the agent"
    )
    with pytest.raises(ValueError, match=line):
        machine.step(keys(1, 4), state, action)
