"""Ends of episodes: what crosses them, in both conventions."""

import functools

import jax
import numpy as np
import pytest

from podracer.agent import ActorOutput, Trajectory
from podracer.networks.action_model import Predictions
from podracer.networks.policies import Categorical
from podracer.rules import disco
from podracer.rules.disco import steps
from podracer.rules.rule import Experience
from tests.disco_files import random_rule
from tests.podracer.rules.experience import (
    FIRST,
    LAST,
    MID,
    normal,
    some_trajectory,
)

ACTIONS = 2
ENDS = {"terminated": (LAST, 0.0), "truncated": (LAST, 1.0), "lost": (MID, 1.0)}


def some_predictions(seed, rows, batch_size):
    random, a, z, q = np.random.default_rng(seed), ACTIONS, 600, 601
    shapes = [(a,), (z,), (a, z), (a, q), (a, a)]
    policy, *rest = (normal(random, rows, batch_size, *shape) for shape in shapes)
    return Predictions(Categorical(policy), *rest)


@functools.cache
def make_update(**config):
    """(weights, trajectory, predictions, the target network's) -> (outputs [T, B, ...],
    state, loss, its gradient)."""
    rule = disco.make_rule(disco.Config(**config))

    def update(weights, trajectory, predictions, target_predictions):
        # The networks' outputs play the part of their params.
        state = rule.initial_state(target_predictions)
        lifetime = jax.tree.map(lambda x: x + 0.5, state.lifetime)
        state = state._replace(lifetime=lifetime)
        experience = Experience(trajectory, predictions, predictions, lambda x: x)
        targets, state, _ = rule.targets(weights, state, experience)
        (total, _), gradient = jax.value_and_grad(rule.loss, 1, has_aux=True)(
            targets, predictions, trajectory
        )
        return targets[:3] + (targets.returns,), state[1:], total, gradient

    return jax.jit(update)


def updated(trajectory, predictions, target_predictions, **config):
    update = make_update(**config)
    return update(
        disco.load(random_rule()), trajectory, predictions, target_predictions
    )


@functools.cache
def two_episodes(end, length=3):
    """The same two episodes of `length` steps, one after the other in one environment, and
    at once in two."""
    step_type, discount = ENDS[end]
    rows = 2 * (length + 1)
    trajectory = some_trajectory(0, actions=ACTIONS)
    random = np.random.default_rng(1)
    types = np.array(([FIRST] + [MID] * (length - 1) + [step_type]) * 2, np.int32)
    discounts = np.array(([1.0] * length + [discount]) * 2, np.float32)
    timesteps = trajectory.timesteps._replace(
        step_type=types[:, None],
        reward=normal(random, rows, 1),
        discount=discounts[:, None],
        observation=np.zeros((rows, 1), np.float32),
    )
    action = np.array(random.integers(ACTIONS, size=(rows, 1)), np.int32)
    policy = Categorical(normal(random, rows, 1, ACTIONS))
    networks = [some_predictions(seed, rows, 1) for seed in (2, 3)]

    def split(tree):
        return jax.tree.map(lambda x: np.concatenate(np.split(x, 2), axis=1), tree)

    def without_last(tree):
        return jax.tree.map(lambda x: x[:-1], tree)

    outputs = ActorOutput(action, policy)
    one = Trajectory(timesteps, without_last(outputs), ()), *networks
    apart = split(timesteps), without_last(split(outputs)), ()
    return one, (Trajectory(*apart), *map(split, networks))


@pytest.mark.parametrize("end", ENDS)
def test_two_episodes_in_a_trajectory_are_two_trajectories(end):
    """Targets, state, loss and gradients; the transition between them has no part."""
    one, two = two_episodes(end)
    outputs, state, loss, gradient = updated(*one)
    expected = updated(*two)

    def assert_close(a, b):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)

    def side_by_side(x, rows):
        x = np.asarray(x)
        return np.concatenate([x[:rows], x[4 : 4 + rows]], axis=1)

    jax.tree.map(lambda a, b: assert_close(side_by_side(a, 3), b), outputs, expected[0])
    jax.tree.map(assert_close, (state, loss), expected[1:3])
    jax.tree.map(
        lambda a, b: assert_close(side_by_side(a, 4), b), gradient, expected[3]
    )
    # Counted, the void transition moves the means.
    plain = updated(*one, means="plain")[1]
    assert abs(float(plain[1].mean_square - state[1].mean_square)) > 1e-4
    assert np.abs(plain[0].hidden - state[0].hidden).max() > 1e-4


def test_a_time_limit_is_bootstrapped_and_an_end_is_not():
    """With the value of the last observation."""
    for end, change in (("truncated", True), ("terminated", False)):
        (trajectory, online, target), _ = two_episodes(end)
        before = updated(trajectory, online, target)[0][-1]
        q = target.q.copy()
        q[3] += np.linspace(0.0, 3.0, 601, dtype=np.float32)
        after = updated(trajectory, online, target._replace(q=q))[0][-1]
        assert (np.abs(after - before)[2].max() > 0.1) == change
        np.testing.assert_array_equal(after[4:], before[4:])


def test_the_policy_after_an_end_is_no_target():
    for end, learned in (("terminated", False), ("truncated", False), ("lost", True)):
        one, _ = two_episodes(end)
        gradient = updated(*one)[-1]
        assert (np.abs(gradient.next_policy[2]).max() > 0) == learned
        assert np.abs(gradient.next_policy[1]).max() > 0
        for row in (3, 7):  # LAST -> FIRST, and the bootstrap timestep
            for leaf in jax.tree.leaves(gradient):
                np.testing.assert_array_equal(leaf[row], 0.0)


def test_an_environment_that_jumps():
    """By hand: environments 0 to 3 of `some_trajectory`, which says what happens there."""
    trajectory = some_trajectory(0)
    old, action = trajectory.timesteps, trajectory.outputs.action
    timesteps, outputs, _ = jax.tree.map(np.asarray, jax.jit(steps.jump)(trajectory))
    _, f, l = MID, FIRST, LAST
    expected = [  # old rows, and their step types
        ([0, 1, 3, 4, 5], [MID, MID, l, MID, MID, f]),
        ([0, 1, 3, 4, 5], [MID, MID, l, MID, MID, f]),
        ([0, 1, 2, 3, 4, 5], [MID, MID, MID, l, MID, MID]),
        ([1, 2, 3, 4], [l, MID, MID, MID, f, f]),
    ]
    ends = {0: 2, 1: 2, 3: 0}  # the row that was LAST before the new episode's first
    for b, (rows, types) in enumerate(expected):
        np.testing.assert_array_equal(timesteps.step_type[:, b], types)
        got = timesteps.observation[: len(rows), b]
        np.testing.assert_array_equal(got, old.observation[rows, b])
        acted = [row for row in rows if row < 5]
        np.testing.assert_array_equal(outputs.action[: len(acted), b], action[acted, b])
        reward = [
            old.reward[ends[b] if kind == l and b in ends else row, b]
            for row, kind in zip(rows, types, strict=False)
        ]
        np.testing.assert_array_equal(timesteps.reward[: len(rows), b], reward)
        discount = [float(kind == MID) for kind in types]
        np.testing.assert_array_equal(timesteps.discount[:, b], discount)
    transitions = jax.jit(steps.steps, static_argnums=1)(timesteps, "jump")
    np.testing.assert_array_equal(transitions.mask[:, 0], [1, 1, 0, 1, 0])
    np.testing.assert_array_equal(transitions.real[:, 0], [1, 1, 1, 1, 0])
    np.testing.assert_array_equal(transitions.ends[:, 0], [0, 1, 0, 0, 1])
    np.testing.assert_array_equal(transitions.cut[:, 0], [0, 1, 0, 1, 1])


@pytest.mark.parametrize("end", ENDS)
def test_what_fills_a_trajectory_up_has_no_effect(end):
    (trajectory, online, target), _ = two_episodes(end)
    jumped = jax.tree.map(np.asarray, jax.jit(steps.jump)(trajectory))
    rows = 8 - int(trajectory.timesteps.last().sum())

    def first(tree, rows):
        return jax.tree.map(lambda x: x[:rows], tree)

    outputs, *rest = updated(jumped, online, target, episode_ends="jump")
    short = Trajectory(first(jumped[0], rows), first(jumped[1], rows - 1), ())
    networks = first(online, rows), first(target, rows)
    expected, *others = updated(short, *networks, episode_ends="jump")
    rest[-1] = first(rest[-1], rows)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5),
        (first(outputs, rows - 1), rest),
        (expected, others),
    )
