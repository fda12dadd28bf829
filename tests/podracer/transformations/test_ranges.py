"""Ranges: what the environment gets, what the agent sees and learns from."""

import dataclasses

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from hypothesis import given, settings
from hypothesis import strategies as st

import anakin
from envs_jax.environment import restart, transition
from podracer import transformations
from podracer.agent import ActorOutput, Agent, LearnerState, Trajectory
from podracer.errors import UserError
from podracer.parallel import AVERAGE
from podracer.transformations import ranges
from tests.environments import Counter, rows

ACTION = specs.BoundedArray((2,), np.float32, [-2.0, -1.0], [2.0, 3.0])
OBSERVATION = specs.BoundedArray((2,), np.float32, [-4.0, 0.0], [4.0, 10.0])
INF = np.inf


@dataclasses.dataclass(frozen=True)
class Follow(Counter):
    """The observation is the last action, shifted; NaN where that was out of bounds."""

    def initial_state(self, key):
        return jnp.int32(0), restart(jnp.zeros(2))

    def step(self, key, state, action):
        inside = (action >= ACTION.minimum) & (action <= ACTION.maximum)
        reward = jnp.where(jnp.all(inside), -jnp.square(action - 1.0).sum(), jnp.nan)
        return state + 1, transition(reward, 1.0 + action, state + 1 >= self.length)

    def observation_spec(self):
        return OBSERVATION

    def action_spec(self):
        return ACTION


def gaussian() -> Agent:
    """Its mean is a multiple of what it observes; its actions are often out of bounds."""

    def predict(weight, timestep):
        return 0.5 + weight * timestep.observation  # [..., 2]

    def act(weight, keys, actor_state, timestep):
        mean = predict(weight, timestep)
        noise = jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys)
        action = jax.lax.stop_gradient(mean + 2.0 * noise)
        return actor_state, ActorOutput(action, {"mean": mean}), mean

    def greedy_actor_step(keys, weight, actor_state, timestep):
        mean = predict(weight, timestep)
        return actor_state, ActorOutput(3.0 * mean, {"mean": mean})

    def learner_step(key, learner_state, trajectory):
        def loss(weight):
            mean = predict(weight, trajectory.timesteps)
            error = jnp.square(trajectory.outputs.action - mean[:-1]).mean(-1)
            return -jnp.mean(trajectory.timesteps.reward[1:] * error)

        weight = learner_state.shared
        metrics = {
            "largest_action": jnp.abs(trajectory.outputs.action).max(),
            "mean": jnp.mean(trajectory.outputs.extras["mean"]),
        }
        gradient = AVERAGE(jax.grad(loss)(weight))
        return LearnerState(weight - 0.01 * gradient, ()), metrics

    return Agent(
        initial_learner_state=lambda key: LearnerState(jnp.float32(0.1), ()),
        learner_step=learner_step,
        actor_params=lambda state: state.shared,
        initial_actor_state=lambda batch_size: (),
        actor_step=lambda keys, weight, *x: act(weight, keys, *x)[:2],
        greedy_actor_step=greedy_actor_step,
    )


def always(action) -> Agent:
    """An agent for one environment that takes this action, whatever it observes."""
    output = ActorOutput(jnp.array([action]), ())
    return gaussian()._replace(actor_step=lambda: ((), output))


def some_timesteps(observation):
    shape = jax.tree.leaves(observation)[0].shape[:2]
    step_type = jnp.full(shape, int(dm_env.StepType.MID))
    return dm_env.TimeStep(step_type, jnp.ones(shape), jnp.ones(shape), observation)


def keys(batch_size):
    return jax.random.split(jax.random.key(0), batch_size)


def test_the_environment_gets_the_action_in_bounds_and_the_learner_its_own():
    timesteps = some_timesteps(jnp.linspace(-9.0, 9.0, 48).reshape(3, 8, 2))
    plain = gaussian()
    for change, to_environment in (
        (ranges.scale_actions, lambda a: np.clip(a, -1, 1) * 2 + [0, 1]),
        (ranges.clip_actions, lambda a: np.clip(a, ACTION.minimum, ACTION.maximum)),
    ):
        agent, both = change(plain, ACTION), []
        for t in range(2):
            arguments = keys(8), jnp.float32(1.0), (), rows(timesteps, t)
            for name in ("actor_step", "greedy_actor_step"):
                _, own = getattr(plain, name)(*arguments)
                _, output = getattr(agent, name)(*arguments)
                jax.tree.map(np.testing.assert_array_equal, output.extras, own)
                expected = to_environment(np.asarray(own.action))
                np.testing.assert_allclose(output.action, expected, rtol=1e-6)
                assert np.abs(own.action).max() > 4
            both.append((own, output))
        own, outputs = jax.tree.map(lambda *x: jnp.stack(x), *both)
        state = plain.initial_learner_state(None)
        jax.tree.map(
            np.testing.assert_array_equal,
            agent.learner_step(None, state, Trajectory(timesteps, outputs, ())),
            plain.learner_step(None, state, Trajectory(timesteps, own, ())),
        )


@pytest.mark.parametrize("change", [ranges.scale_actions, ranges.clip_actions])
def test_an_agent_within_bounds_learns_in_anakin(change):
    agent = change(ranges.scale_observations(gaussian(), OBSERVATION), ACTION)
    options = {"batch_size": 8, "unroll_length": 4, "total_steps": 8 * 4 * 5}
    weights = set()
    for state, metrics in anakin.train(agent, Follow(), cores=2, **options):
        weights.add(float(state.learner.shared))
        assert metrics["largest_action"] > 3
    assert len(weights) == 5


def test_transformations_around_see_the_environments_action():
    agent = ranges.scale_actions(gaussian(), ACTION)
    seen = []

    def see(last_action, timestep):
        seen.append(last_action)
        return last_action, timestep

    agent = transformations.remember(
        agent, lambda n: jnp.zeros((n, 2)), see, lambda last_action, action: action
    )
    state = agent.initial_actor_state(4)
    timestep = rows(some_timesteps(jnp.ones((1, 4, 2))), 0)
    for _ in range(2):
        state, output = agent.actor_step(keys(4), jnp.float32(0.1), state, timestep)
    np.testing.assert_array_equal(seen[1], output.action)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2, unique=True),
    st.floats(width=32, allow_nan=False),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_no_action_leaves_its_bounds(bounds, action):
    low, high = sorted(bounds)
    spec = specs.BoundedArray((), np.float32, low, high)
    for change in (ranges.scale_actions, ranges.clip_actions):
        _, output = change(always(action), spec).actor_step()
        spec.validate(np.asarray(output.action)[0])


def test_infinite_bounds_do_not_clip():
    for spec, expected in (
        (specs.BoundedArray((2,), np.float32, [-INF, 0.0], [1.0, INF]), [-50.0, 60.0]),
        (specs.Array((2,), np.float32), [-50.0, 60.0]),
        (ACTION, [-2.0, 3.0]),
    ):
        _, output = ranges.clip_actions(always([-50.0, 60.0]), spec).actor_step()
        np.testing.assert_array_equal(output.action[0], expected)


def test_observations_reach_one_at_their_bounds():
    spec = {
        "place": OBSERVATION,
        "name": specs.DiscreteArray(4),
        "pixel": specs.BoundedArray((), np.uint8, 0, 255),
    }
    place = jnp.array([[[-4.0, 0.0], [4.0, 10.0]], [[0.0, 5.0], [8.0, -5.0]]])
    numbers = jnp.array([[0, 1], [2, 3]])
    pixel = jnp.array([[0, 255], [51, 204]], jnp.uint8)
    expected = {
        "place": [[[-1, -1], [1, 1]], [[0, 0], [2, -2]]],
        "name": numbers,
        "pixel": [[-1, 1], [-0.6, 0.6]],
    }

    def observe(keys, params, actor_state, timestep):
        return actor_state, ActorOutput(numbers[0], timestep.observation)

    def learn(key, state, trajectory):
        return state, trajectory.timesteps.observation

    agent = ranges.scale_observations(
        gaussian()._replace(actor_step=observe, learner_step=learn), spec
    )
    timesteps = some_timesteps({"place": place, "name": numbers, "pixel": pixel})
    state, output = agent.initial_actor_state(2), ActorOutput(numbers[:1], ())
    trajectory = Trajectory(timesteps, output, state)
    _, learned = agent.learner_step(None, None, trajectory)
    _, acted = agent.actor_step(None, None, state, rows(timesteps, 0))
    for name, x in expected.items():
        np.testing.assert_allclose(learned[name], x, atol=1e-6)
        np.testing.assert_allclose(acted.extras[name], x[0], atol=1e-6)


def test_scaled_specs():
    spec = {"a": OBSERVATION, "b": specs.DiscreteArray(4)}
    scaled = ranges.scaled_spec(spec)
    assert scaled["a"] == specs.BoundedArray((2,), np.float32, -1.0, 1.0)
    assert scaled["b"] is spec["b"]


@pytest.mark.parametrize("act", [ranges.scale_actions, ranges.clip_actions])
@pytest.mark.parametrize(
    "spec", [specs.BoundedArray((), np.int32, 0, 3), specs.DiscreteArray(3)]
)
def test_actions_without_floats_have_no_bounds_to_keep(act, spec):
    with pytest.raises(UserError, match="^action_spec is .*only float.*out$"):
        act(gaussian(), {"x": spec})


@pytest.mark.parametrize(
    ("field", "spec", "line"),
    [
        (
            "action_spec",
            specs.Array((2,), np.float32),
            "bounds -inf to inf;.*clip_actions .--interface.actions clip",
        ),
        (
            "action_spec",
            specs.BoundedArray((2,), np.float64, [-1, 0], [1, INF]),
            "bounds 0 to inf;",
        ),
        (
            "observation_spec",
            specs.BoundedArray((3,), np.float32, -1, [1, -1, 1]),
            "bounds -1 to -1;.*normalize_observations",
        ),
        (  # gymnasium's CartPole means no bounds
            "observation_spec",
            specs.BoundedArray(
                (), np.float32, *np.array([-3.4e38, 3.4e38], np.float32)
            ),
            r"bounds -3.4e\+38 to 3.4e\+38;",
        ),
        (
            "observation_spec",
            specs.BoundedArray((), np.float64, -1e300, 1e300),
            "bounds -inf to inf;",
        ),
    ],
)
def test_what_has_no_range_is_told_in_a_line(field, spec, line):
    change = {"action_spec": ranges.scale_actions}.get(field, ranges.scale_observations)
    with pytest.raises(UserError, match=f"^{field}\\['x'\\] .*{line}") as error:
        change(gaussian(), {"x": spec})
    assert "\n" not in str(error.value)


def test_of_a_composite_action_the_floats_are_scaled():
    spec = {"gear": specs.DiscreteArray(3), "steer": ACTION}
    inner = ranges.scaled_action_spec(spec)
    assert inner["gear"] is spec["gear"]
    assert (inner["steer"].minimum, inner["steer"].maximum) == (-1.0, 1.0)
    own = {"gear": jnp.array([2]), "steer": jnp.array([[0.5, -3.0]])}
    agent = gaussian()._replace(
        actor_step=lambda keys, params, state, timestep: (state, ActorOutput(own, ()))
    )
    _, output = ranges.scale_actions(agent, spec).actor_step((), (), (), ())
    np.testing.assert_array_equal(output.action["gear"], [2])
    np.testing.assert_allclose(output.action["steer"], [[1.0, -1.0]])
    assert output.extras.action is own


def test_what_is_no_quantity_is_not_scaled():
    spec = {
        "action_mask": specs.BoundedArray((3,), np.int8, 0, 1),
        "flag": specs.BoundedArray((), bool, False, True),
        "kind": specs.DiscreteArray(4),
        "state": OBSERVATION,
    }
    scaled = ranges.scaled_spec(spec)
    kept = {name for name in spec if scaled[name] is spec[name]}
    assert kept == {"action_mask", "flag", "kind"}
