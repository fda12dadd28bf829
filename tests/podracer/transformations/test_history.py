"""Stacked frames: equal in acting and learning, and what a plain loop would stack."""

import dm_env
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import transformations
from podracer.agent import ActorOutput, Agent, LearnerState, Trajectory
from podracer.errors import UserError
from tests.environments import rows

pytestmark = pytest.mark.core

FIRST, MID, LAST = dm_env.StepType
FRAME = specs.Array((2, 2, 1), np.uint8)


def observer() -> Agent:
    """An agent whose extras, and whose learner's metrics, are what it observes."""

    def actor_step(keys, params, actor_state, timestep):
        return actor_state + 1, ActorOutput(keys, timestep.observation)

    return Agent(
        initial_learner_state=lambda key: LearnerState((), ()),
        learner_step=lambda key, state, trajectory: (
            state,
            {"seen": trajectory.timesteps.observation},
        ),
        actor_params=lambda state: (),
        initial_actor_state=lambda batch_size: jnp.zeros(batch_size, jnp.int32),
        actor_step=actor_step,
        greedy_actor_step=actor_step,
    )


def some_timesteps(step_types):
    """[T, 2] timesteps with distinct frames; the second environment is one step late."""
    rows = len(step_types)
    step_type = np.stack([step_types, np.roll(step_types, 1)], 1).astype(np.int32)
    frames = np.arange(rows * 2 * 4, dtype=np.uint8).reshape(rows, 2, 2, 2, 1)
    zeros = np.zeros((rows, 2), np.float32)
    return dm_env.TimeStep(step_type, zeros, zeros, frames)


def stacked_by_hand(timesteps, num_frames):
    stacks, stack = [], None
    for t in range(len(timesteps.reward)):
        frame = timesteps.observation[t]
        fresh = np.concatenate([frame] * num_frames, -1)
        stack = fresh if stack is None else np.concatenate([stack[..., 1:], frame], -1)
        first = timesteps.step_type[t] == FIRST
        stack = np.where(first[:, None, None, None], fresh, stack)
        stacks.append(stack)
    return np.stack(stacks)


def test_acting_and_learning_see_the_same_stacks():
    agent = transformations.stack_frames(observer(), 4, FRAME)
    types = [FIRST, MID, MID, LAST, FIRST, MID, LAST, FIRST, MID, MID, MID, LAST]
    timesteps = some_timesteps(types)
    timesteps.step_type[0] = FIRST
    expected = stacked_by_hand(timesteps, 4)
    state, seen, states = agent.initial_actor_state(2), [], []
    for t in range(len(types)):
        states.append(state)
        row = rows(timesteps, t)
        state, output = agent.actor_step(jnp.zeros(2), (), state, row)
        seen.append(output.extras)
    np.testing.assert_array_equal(np.stack(seen), expected)
    for start in range(len(types) - 4):  # a trajectory may begin anywhere
        part = slice(start, start + 4)
        outputs = ActorOutput(jnp.zeros((3, 2)), ())
        trajectory = Trajectory(rows(timesteps, part), outputs, states[start])
        _, metrics = agent.learner_step(None, LearnerState((), ()), trajectory)
        np.testing.assert_array_equal(metrics["seen"], expected[part])
    assert int(state[1][0]) == len(types)  # the inner agent keeps its own state


def test_of_a_tree_of_observations_the_images_are_stacked():
    spec = {"image": FRAME, "state": specs.Array((3,), np.float32)}
    stacked = transformations.stacked_spec(spec, 4)
    assert stacked["image"].shape == (2, 2, 4)
    assert stacked["state"] is spec["state"]
    alone = transformations.stack_frames(observer(), 4, FRAME)
    agent = transformations.stack_frames(observer(), 4, spec)
    timesteps = some_timesteps([FIRST, MID, LAST, FIRST])
    of_image, of_both = alone.initial_actor_state(2), agent.initial_actor_state(2)
    for t in range(4):
        row, state = rows(timesteps, t), np.full((2, 3), t, np.float32)
        of_image, expected = alone.actor_step(jnp.zeros(2), (), of_image, row)
        both = row._replace(observation={"image": row.observation, "state": state})
        of_both, output = agent.actor_step(jnp.zeros(2), (), of_both, both)
        np.testing.assert_array_equal(output.extras["image"], expected.extras)
        np.testing.assert_array_equal(output.extras["state"], state)


def test_stacked_spec():
    assert transformations.stacked_spec(FRAME, 4).shape == (2, 2, 4)


def test_bounds_of_each_element_are_stacked_too():
    spec = specs.BoundedArray((2, 3), np.float32, [-1, -2, -3], np.ones((2, 3)))
    stacked = transformations.stacked_spec(spec, 2)
    assert stacked.shape == (2, 6)
    np.testing.assert_array_equal(stacked.minimum, [[-1, -2, -3] * 2] * 2)
    np.testing.assert_array_equal(stacked.maximum, np.ones((2, 6)))


@pytest.mark.parametrize(
    "spec", [specs.DiscreteArray(3), {"state": specs.Array((3,), np.float32)}]
)
def test_what_cannot_be_stacked_is_one_line(spec):
    with pytest.raises(UserError, match="frame_stack is 4, for observations of one"):
        transformations.stacked_spec(spec, 4)


def test_a_stack_of_one_is_the_frame():
    agent = transformations.stack_frames(observer(), 1, FRAME)
    timestep = rows(some_timesteps([FIRST]), 0)
    state = agent.initial_actor_state(2)
    _, output = agent.actor_step(jnp.zeros(2), (), state, timestep)
    np.testing.assert_array_equal(output.extras, timestep.observation)


def test_the_last_action_is_the_one_that_was_taken():
    spec = specs.DiscreteArray(5)
    agent = transformations.observe_last_action(observer(), spec)
    timesteps = some_timesteps([FIRST, MID, LAST, FIRST])
    actions = jnp.array([[1, 2], [3, 4], [0, 1]])
    state, states, seen = agent.initial_actor_state(2), [], []
    for t in range(3):  # the observer acts as its keys say
        states.append(state)
        state, output = agent.actor_step(actions[t], (), state, rows(timesteps, t))
        seen.append(output.extras[1])
    expected = jnp.array([[0, 0], [1, 2], [3, 4], [0, 1]])
    np.testing.assert_array_equal(jnp.stack(seen), expected[:3])
    trajectory = Trajectory(timesteps, ActorOutput(actions, ()), states[0])
    _, metrics = agent.learner_step(None, LearnerState((), ()), trajectory)
    np.testing.assert_array_equal(metrics["seen"][1], expected)
