"""PQN: its targets by hand, its exploration, its epochs, and what it refuses."""

import dataclasses
import functools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import Catch, Pendulum
from podracer import networks
from podracer.agent import ActorOutput, Trajectory
from podracer.agents import pqn
from podracer.errors import UserError
from podracer.learning import losses
from podracer.learning.exploration import epsilon_after, explore
from podracer.networks import heads
from podracer.parallel import AVERAGE
from tests.jitted import jitted, jitted_network

SPECS = Catch().observation_spec(), Catch().action_spec()
SMALL = pqn.NetworkConfig(hidden_sizes=(8,))
FIRST, MID, LAST = (int(x) for x in dm_env.StepType)


ONE_STEP = pqn.Config(epochs=1, minibatches=1, learning_rate=1e-2)


@functools.cache  # compiled once for all tests
def make(config, network=SMALL):
    return jitted(pqn.make_agent(config, pqn.make_network(*SPECS, network)))


@functools.cache
def network_of_tests():
    return jitted_network(pqn.make_network(*SPECS, SMALL))


def timesteps_of(step_types, discount=1.0):
    """Timesteps [T + 1, B] with random boards and rewards; LAST has `discount`."""
    step_type, random = np.int32(step_types), np.random.default_rng(1)
    return dm_env.TimeStep(
        step_type,
        np.float32(random.normal(size=step_type.shape)),
        np.float32(np.where(step_type == LAST, discount, 1.0)),
        np.float32(random.normal(size=(*step_type.shape, 10, 5))),
    )


def target_by_hand(values, timesteps, discount_factor, trace_decay):
    """Backwards over one environment, a step at a time; None where there is no target."""
    step_type, reward, discount = (np.asarray(x) for x in timesteps[:3])
    targets, after = [], None  # the target of the step after, in the same episode
    for t in reversed(range(len(step_type) - 1)):
        if step_type[t] == LAST or step_type[t + 1] == FIRST:
            targets.append(None)
            after = None
            continue
        largest = values[t + 1]
        ends = step_type[t + 1] == LAST or after is None
        mixed = largest if ends else (1 - trace_decay) * largest + trace_decay * after
        after = reward[t + 1] + discount_factor * discount[t + 1] * mixed
        targets.append(after)
    return targets[::-1]


@pytest.mark.core
@pytest.mark.parametrize("discount", [0.0, 1.0])  # of LAST: terminated, truncated
def test_targets_are_those_of_a_slow_loop(discount):
    length, rng = 6, np.random.default_rng(0)
    # Environment b ends at row b; the last two never and twice.
    step_types = np.full((length + 1, length + 3), MID)
    for b in range(length + 1):
        step_types[b, b] = LAST
        step_types[b + 1 : b + 2, b] = FIRST
    step_types[[1, 4], -1], step_types[[2, 5], -1] = LAST, FIRST
    timesteps = timesteps_of(step_types, discount)
    values = rng.normal(size=step_types.shape).astype(np.float32)

    @jax.jit
    def lambda_returns():
        transitions = losses.make_transitions(timesteps, 0.9)
        found = losses.lambda_returns(jnp.asarray(values[1:]), transitions, 0.7)
        return found, transitions.mask

    got, mask = map(np.asarray, lambda_returns())
    for b in range(step_types.shape[1]):
        one = jax.tree.map(lambda x, b=b: x[:, b], timesteps)
        for t, expected in enumerate(target_by_hand(values[:, b], one, 0.9, 0.7)):
            if expected is None:
                assert mask[t, b] == 0.0
            else:
                np.testing.assert_allclose(got[t, b], expected, atol=1e-6)


def acted(agent, state, step_types):
    """A trajectory of the agent over such timesteps."""
    timesteps = timesteps_of(step_types)
    batch_size = timesteps.reward.shape[1]
    memory = first = agent.initial_actor_state(batch_size)
    outputs = []
    for t in range(len(step_types) - 1):
        keys = jax.random.split(jax.random.key(t), batch_size)
        row = jax.tree.map(lambda x, t=t: x[t], timesteps)
        memory, output = agent.actor_step(keys, agent.actor_params(state), memory, row)
        outputs.append(output)
    outputs = jax.tree.map(lambda *x: np.stack(x), *outputs)
    return Trajectory(timesteps, outputs, first)


def test_the_first_loss_is_that_of_targets_by_hand():
    """The last target of a trajectory ends at the value of the last observation."""
    config, network, agent = ONE_STEP, network_of_tests(), make(ONE_STEP)
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory = acted(agent, state, np.full((4, 2), MID))
    timesteps, (action, _), memory = trajectory
    values = np.asarray(network.unroll(state.shared.params, memory, timesteps))
    taken = np.take_along_axis(values[:-1], np.asarray(action)[..., None], -1)[..., 0]
    targets = [
        target_by_hand(
            values.max(-1)[:, b],
            jax.tree.map(lambda x, b=b: x[:, b], timesteps),
            config.discount_factor,
            config.trace_decay,
        )
        for b in range(2)
    ]
    expected = np.mean(0.5 * np.square(taken - np.stack(targets, 1)))
    _, metrics = agent.learner_step(jax.random.key(2), state, trajectory)
    np.testing.assert_allclose(metrics["loss/total"], expected, rtol=1e-5)


def test_the_value_is_that_of_the_actions_taken():
    """Not of void transitions, from the end of an episode to the next."""
    agent = make(ONE_STEP)
    state = agent.initial_learner_state(jax.random.key(0))
    step_types = np.full((5, 4), MID)
    step_types[2:4] = [[LAST], [FIRST]]
    trajectory = acted(agent, state, step_types)
    timesteps, (action, _), memory = trajectory
    values = network_of_tests().unroll(state.shared.params, memory, timesteps)
    taken = np.take_along_axis(np.asarray(values)[:-1], action[..., None], -1)
    _, metrics = agent.learner_step(jax.random.key(2), state, trajectory)
    assert metrics["value"] == pytest.approx(taken[[0, 1, 3]].mean(), rel=1e-5)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_an_update_moves_the_value_of_the_action_taken_towards_its_target(memory):
    """One minibatch: the loss falls, by the gradient of half the squared error."""
    network = dataclasses.replace(SMALL, memory=memory, memory_size=16)
    agent = make(ONE_STEP, network)
    state = agent.initial_learner_state(jax.random.key(0))
    step_types = np.full((5, 4), MID)
    step_types[2, 1], step_types[3, 1] = LAST, FIRST
    trajectory = acted(agent, state, step_types)
    found = []
    for _ in range(50):
        state, metrics = agent.learner_step(jax.random.key(2), state, trajectory)
        found.append(float(metrics["loss/total"]))
    assert found[-1] < 0.5 * found[0]


def test_what_follows_an_end_is_not_learned():
    agent = make(ONE_STEP)
    state = agent.initial_learner_state(jax.random.key(0))
    step_types = np.full((4, 2), MID)
    step_types[1], step_types[2] = LAST, FIRST
    trajectory = acted(agent, state, step_types)
    reward = trajectory.timesteps.reward.copy()
    reward[2] = 1e6  # of LAST -> FIRST
    action = trajectory.outputs.action.copy()
    action[1] = 2 - action[1]
    other = trajectory._replace(
        timesteps=trajectory.timesteps._replace(reward=reward),
        outputs=trajectory.outputs._replace(action=action),
    )
    step = agent.learner_step
    jax.tree.map(
        np.testing.assert_array_equal,
        step(jax.random.key(0), state, trajectory)[0],
        step(jax.random.key(0), state, other)[0],
    )


def test_epsilon_decays_over_its_share_of_the_run():
    config = pqn.Config(total_steps=1_000, exploration_share=0.2, epsilon=0.1)
    got = [float(epsilon_after(config, x)) for x in (0.0, 100.0, 200.0, 900.0)]
    np.testing.assert_allclose(got, [1.0, 0.55, 0.1, 0.1], rtol=1e-6)
    assert epsilon_after(pqn.Config(epsilon=0.3), 0.0) == jnp.float32(0.3)


def test_the_steps_of_all_cores_count():
    class OfTwo(type(AVERAGE)):
        cores = 2
        __call__ = total = lambda self, tree: tree

    config = dataclasses.replace(ONE_STEP, decay_learning_rate=True, total_steps=32)
    network = pqn.make_network(*SPECS, SMALL)
    agent = jitted(pqn.make_agent(config, network, OfTwo(None)))
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory = acted(agent, state, np.full((5, 2), MID))  # 8 transitions on a core
    state, _ = agent.learner_step(jax.random.key(1), state, trajectory)
    _, metrics = agent.learner_step(jax.random.key(1), state, trajectory)
    assert metrics["learning_rate"] == pytest.approx(0.5 * config.learning_rate)
    assert metrics["epsilon"] == pytest.approx(config.epsilon)


@pytest.mark.core
def test_actors_explore_as_the_learner_has_counted():
    """Two updates of 8 steps out of 100: of the 50 that decay, 16."""
    config = pqn.Config(total_steps=100, exploration_share=0.5, minibatches=1)
    agent = make(config)
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory = acted(agent, state, np.full((3, 4), MID))
    for _ in range(2):
        state, _ = agent.learner_step(jax.random.key(0), state, trajectory)
    epsilon = agent.actor_params(state).epsilon
    np.testing.assert_allclose(epsilon, 1.0 - 0.95 * 16 / 50, rtol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_actions_are_random_as_often_as_epsilon_says(epsilon):
    values, count = jnp.array([0.1, 3.0, -2.0]), 20_000
    keys = jax.random.split(jax.random.key(0), count)
    choose = jax.jit(jax.vmap(explore, (0, None, None)))
    actions = choose(keys, values, epsilon)
    shares = np.bincount(np.asarray(actions), minlength=3) / count
    expected = np.full(3, epsilon / 3) + (1 - epsilon) * np.array([0.0, 1.0, 0.0])
    np.testing.assert_allclose(shares, expected, atol=0.015)


def test_the_greedy_twin_takes_the_largest_value():
    agent = make(pqn.Config(initial_epsilon=1.0, total_steps=100))
    state = agent.initial_learner_state(jax.random.key(0))
    timestep = jax.tree.map(lambda x: x[0], timesteps_of(np.full((1, 64), MID)))
    keys, params = jax.random.split(jax.random.key(0), 64), agent.actor_params(state)
    network = network_of_tests()
    _, values = network.step(params.network, network.initial_memory(64), timestep)
    memory = agent.initial_actor_state(64)
    _, output = agent.greedy_actor_step(keys, params, memory, timestep)
    values = np.asarray(values)
    np.testing.assert_array_equal(output.action, np.argmax(values, -1))
    _, random = agent.actor_step(keys, params, memory, timestep)
    assert (random.action != output.action).mean() > 0.4
    assert isinstance(random, ActorOutput)
    np.testing.assert_array_equal(random.extras, np.max(values, -1))


def test_layers_are_normalized_unless_refused():
    def scales(network):
        params = jax.eval_shape(network.init, jax.random.key(0))
        return sum("LayerNorm" in str(x) for x, _ in jax.tree.leaves_with_path(params))

    assert (
        scales(pqn.make_network(*SPECS, pqn.NetworkConfig())) == 4
    )  # 2 x (scale, bias)
    assert scales(networks.actor_critic(*SPECS)) == 0


def test_impossible_settings_are_one_line():
    spec = Pendulum().action_spec()
    with pytest.raises(UserError, match="PQN is for discrete actions"):
        pqn.make_network(SPECS[0], spec)
    with pytest.raises(UserError, match="epsilon is 1.5; it must be from 0 to 1"):
        pqn.Config(epsilon=1.5)
    with pytest.raises(UserError, match="shuffle is transitions"):
        memory = dataclasses.replace(SMALL, memory="lstm")
        make(pqn.Config(shuffle="transitions"), memory)
    with pytest.raises(UserError, match="layer_norm is true"):
        pqn.NetworkConfig(torso="resnet")
    with pytest.raises(UserError, match="separate_value is true"):
        pqn.make_network(*SPECS, pqn.NetworkConfig(separate_value=True))
    with pytest.raises(UserError, match=r"head.init_scale is 0.1, .* no effect on PQN"):
        head = heads.Config(init_scale=0.1)
        pqn.make_network(*SPECS, pqn.NetworkConfig(head=head))
