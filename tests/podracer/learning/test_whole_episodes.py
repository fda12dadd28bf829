"""Whole episodes: every one, once, in order, whatever the unrolls cut it into."""

import functools

import dm_env
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agent import ActorOutput, Trajectory
from podracer.learning import whole_episodes

FIRST, MID, LAST = map(int, dm_env.StepType)
LONGEST = 6


def stream(lengths, steps):
    """Timesteps [steps, B] of one environment a list of lengths, used in a circle.

    An observation is 100 times the environment plus the row, counted from its start.
    """
    step_type = np.zeros((steps, len(lengths)), np.int32)
    for b, each in enumerate(lengths):
        kinds = []
        while len(kinds) < steps:
            length = each[sum(k == LAST for k in kinds) % len(each)]
            kinds += [FIRST] + [MID] * (length - 1) + [LAST]
        step_type[:, b] = kinds[:steps]
    observation = 1000.0 * np.arange(len(lengths)) + np.arange(steps)[:, None]
    ones = np.ones_like(observation)
    return dm_env.TimeStep(
        *(jnp.array(x) for x in (step_type, observation, ones, observation))
    )


# Compiled as a whole: each of its operations would be a compilation of its own.
@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def play(timesteps, unroll_length, capacity, longest=LONGEST, newest=-1):
    """(memory, dropped, too_long) after all trajectories, from acting as agents do.

    `newest` are the places in the ring at which the environments begin.
    """

    def output(timestep):
        return ActorOutput(
            timestep.observation.astype(jnp.int32), -timestep.observation
        )

    def unroll(carry, rows):
        running, memory = carry

        def step(running, timestep):
            row = whole_episodes.Row(timestep, output(timestep))
            return whole_episodes.append(running, row), None

        acted = jax.tree.map(lambda x: x[:-1], rows)
        trajectory = Trajectory(rows, output(acted), ())
        after, _ = jax.lax.scan(step, running, acted)
        memory, stored = whole_episodes.store(memory, trajectory, running)
        return (after, memory), stored

    first = jax.tree.map(lambda x: x[0, 0], timesteps)
    row = whole_episodes.Row(first, output(first))
    batch_size = timesteps.reward.shape[1]
    running = whole_episodes.initial_running(row, longest, batch_size)
    running = running._replace(newest=jnp.broadcast_to(newest, batch_size))
    carry = running, whole_episodes.initial_buffer(row, longest, capacity)

    def rows_from(t):
        return jax.tree.map(lambda x: x[t : t + unroll_length + 1], timesteps)

    starts = range(0, len(timesteps.reward) - unroll_length, unroll_length)
    cut = [rows_from(t) for t in starts]
    (_, memory), stored = jax.lax.scan(
        unroll, carry, jax.tree.map(lambda *x: jnp.stack(x), *cut)
    )
    return memory, stored.dropped.sum(), stored.too_long.any()


def expected(timesteps, unroll_length):
    """The observations of each finished episode, in the order that they end."""
    steps = (len(timesteps.reward) - 1) // unroll_length * unroll_length
    found, running = [], {}
    for t in range(steps):
        for b in range(timesteps.reward.shape[1]):
            kind = int(timesteps.step_type[t, b])
            running[b] = ([] if kind == FIRST else running[b]) + [
                float(timesteps.observation[t, b])
            ]
            if kind == LAST:
                found.append(running[b])
    return found


lengths = st.lists(
    st.lists(st.integers(1, LONGEST), min_size=1, max_size=4), min_size=1, max_size=3
)
lost = st.sets(st.integers(1, 28), max_size=2)


@hypothesis.settings(deadline=None, max_examples=12)
@hypothesis.given(lengths, st.integers(1, 7), st.integers(1, 8), lost, st.booleans())
def test_episodes_arrive_whole_in_order_and_once(
    lengths, unroll_length, capacity, lost, together
):
    """Those that were lost before their end, where FIRST follows MID, do not.

    Environments that have not stepped together are at different places of their rings.
    """
    timesteps = stream(lengths, steps=29)
    for t in lost:
        kind = timesteps.step_type
        kind = kind.at[t].set(jnp.where(kind[t] == MID, FIRST, kind[t]))
        timesteps = timesteps._replace(step_type=kind)
    newest = np.zeros(len(lengths), int) if together else np.arange(len(lengths)) % 2
    memory, dropped, too_long = play(
        timesteps, unroll_length, capacity, LONGEST, newest
    )
    wanted = expected(timesteps, unroll_length)
    assert int(memory.count) == min(len(wanted), capacity)
    assert int(dropped) == max(0, len(wanted) - capacity)
    assert not too_long
    episodes = jax.jit(whole_episodes.episodes)(memory)
    for n, observations in enumerate(wanted[:capacity]):
        length = len(observations) - 1
        assert int(memory.length[n]) == length
        rows = episodes.timesteps.observation[: length + 1, n]
        np.testing.assert_array_equal(rows, observations)
        np.testing.assert_array_equal(episodes.outputs.action[:length, n], rows[:-1])
        np.testing.assert_array_equal(episodes.outputs.extras[:length, n], -rows[:-1])
        kinds = episodes.timesteps.step_type[:, n]
        assert kinds[0] == FIRST and (kinds[length:] == LAST).all()
        assert (kinds[1:length] == MID).all()


@pytest.mark.parametrize(("length", "fits"), [(LONGEST, True), (LONGEST + 1, False)])
@pytest.mark.parametrize("unroll_length", [1, 3, 20])
def test_an_episode_longer_than_the_memory_is_told(length, fits, unroll_length):
    timesteps = stream([[length]], steps=21)
    assert bool(play(timesteps, unroll_length, 4)[2]) != fits


def test_an_episode_that_never_ends_is_told():
    assert play(stream([[100]], steps=21), 5, 4)[2]


def test_each_member_of_a_population_appends_to_its_own():
    """Three members of two environments each, at the same place or at different ones."""
    numbers = jnp.arange(6.0).reshape(3, 2)
    row = whole_episodes.Row(dm_env.TimeStep(*[numbers] * 4), ActorOutput(numbers, ()))
    rows = jax.tree.map(lambda x: jnp.tile(-x[..., None], LONGEST + 1), row)
    newest = jnp.array([[2, 2], [0, LONGEST], [5, 1]])
    members = whole_episodes.Running(rows, newest, newest)
    after = jax.jit(jax.vmap(whole_episodes.append))(members, row)
    one = jax.jit(whole_episodes.append)
    for member in range(3):
        expected = one(*jax.tree.map(lambda x, m=member: x[m], (members, row)))
        found = jax.tree.map(lambda x, m=member: x[m], after)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_members_that_begin_alike_append_each_to_their_own():
    """`Running` has no axis of members yet, as where it is made under `jax.vmap`."""
    numbers = jnp.arange(6.0).reshape(3, 2)
    row = whole_episodes.Row(dm_env.TimeStep(*[numbers] * 4), ActorOutput(numbers, ()))
    example = jax.tree.map(lambda x: x[0, 0], row)
    running = whole_episodes.initial_running(example, LONGEST, batch_size=2)
    after = jax.jit(jax.vmap(whole_episodes.append, (None, 0)))(running, row)
    assert after.rows.timestep.reward.shape == (3, 2, LONGEST + 1)
    written = after.rows.timestep.reward[:, :, after.newest[0, 0]]
    np.testing.assert_array_equal(written, numbers)
