"""SAC: its updates against float64, its actions, and what it refuses."""

import dataclasses
import functools
import math

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from envs_jax import Catch, Pendulum
from podracer import networks
from podracer.agent import ActorOutput
from podracer.agents import sac
from podracer.errors import UserError
from podracer.learning import losses
from podracer.networks import critics, heads
from tests.float64 import (
    FIRST,
    LAST,
    STEP_TYPES,
    Adam,
    affine,
    close,
    slope,
    trajectory_of,
    transitions64,
    values64,
    wide,
)
from tests.jitted import jitted, with_drawn

ACTIONS = specs.BoundedArray((2,), np.float32, -1.0, 1.0)
SPECS = Pendulum().observation_spec(), ACTIONS
SMALL = sac.NetworkConfig(hidden_sizes=(4,))
CONFIG = sac.Config(
    learning_rate=3e-3,
    critic_learning_rate=1e-2,
    target_rate=0.1,
    initial_temperature=0.2,
    target_entropy=0.6,  # close to the entropy, so that the temperature rises and falls
)


@functools.cache  # compiled once for all tests
def make(config=CONFIG, network=SMALL):
    network = with_drawn(sac.make_network(*SPECS, network))
    agent = jitted(sac.make_agent(config, network))
    return agent._replace(weighted_step=jax.jit(agent.weighted_step))


def policy64(params, observation, noise):
    """(action, its log-probability) of the squashed Gaussian."""
    features = params["params"]["shared"]["MLP_0"]["Dense_0"]
    hidden = np.maximum(affine(features, observation), 0.0)
    head = params["params"]["policy_head"]
    mean, raw = (affine(head[name], hidden) for name in ("Dense_0", "deviation"))
    log_deviation = -5.0 + 7.0 / (1.0 + np.exp(-raw))
    before = mean + np.exp(log_deviation) * noise
    log_prob = -0.5 * noise**2 - 0.5 * np.log(2.0 * np.pi) - log_deviation
    log_prob -= np.log(1.0 - np.tanh(before) ** 2)
    return np.tanh(before), log_prob.sum(-1)


class Reference:
    """SAC as the paper has it, in numpy."""

    def __init__(self, params):
        self.policy, self.critics, self.log_temperature = wide(params)
        self.targets = self.critics
        rates = CONFIG.learning_rate, *[CONFIG.critic_learning_rate] * 2
        self.adams = [Adam(rate) for rate in rates]

    def step(self, trajectory, noise, weight):
        timesteps, (action, _), _ = wide(trajectory)
        x_tm1, x_t = timesteps.observation[:-1], timesteps.observation[1:]
        reward, discount, mask = transitions64(trajectory.timesteps)
        temperature = np.exp(self.log_temperature)

        a_t, log_prob = policy64(self.policy, x_t, noise[0])
        v_t = values64(self.targets, x_t, a_t).min(0) - temperature * log_prob
        target = reward + CONFIG.discount_factor * discount * v_t
        times = mask * weight / mask.size

        def critic_loss(params):
            errors = values64(params, x_tm1, action) - target
            return np.sum(times * 0.5 * errors**2)

        def policy_loss(params):
            a, log_prob = policy64(params, x_tm1, noise[1])
            value = values64(self.critics, x_tm1, a).min(0)
            return np.sum(times * (temperature * log_prob - value))

        def temperature_loss(log_temperature):
            excess = (
                policy64(self.policy, x_tm1, noise[1])[1] + 2 * CONFIG.target_entropy
            )
            return np.sum(times * -np.exp(log_temperature) * excess)

        errors = np.abs(values64(self.critics, x_tm1, action) - target).mean(0)
        parts = self.policy, self.critics, self.log_temperature
        functions = policy_loss, critic_loss, temperature_loss
        self.policy, self.critics, self.log_temperature = (
            adam.step(part, slope(loss, part))
            for adam, part, loss in zip(self.adams, parts, functions, strict=True)
        )
        self.targets = jax.tree.map(
            lambda old, new: old + CONFIG.target_rate * (new - old),
            self.targets,
            self.critics,
        )
        return (mask * errors).mean(0)


@pytest.mark.core
def test_twenty_updates_are_those_of_float64():
    """Targets, temperature, target networks, importance weights and priorities."""
    agent = make()
    state = agent.initial_learner_state(jax.random.key(3))
    reference = Reference(state.shared.params)
    weight = np.float32([0.5, 1.0, 0.25, 2.0])
    for update in range(20):
        key, trajectory = jax.random.key(update), trajectory_of(update, 2)
        noise = np.float64(jax.random.normal(key, (2, 3, 4, 2)))
        state, _, priority = agent.weighted_step(key, state, trajectory, weight)
        expected = reference.step(trajectory, noise, weight)
        close(priority, expected)
        if update in (0, 19):
            shared = state.shared
            close(shared.params.policy, reference.policy)
            close(shared.params.critics, reference.critics)
            close(shared.params.log_temperature, reference.log_temperature)
            close(shared.targets, reference.targets)


def test_a_step_without_weights_is_one_with_ones():
    agent = make()
    state = agent.initial_learner_state(jax.random.key(3))
    arguments = jax.random.key(0), state, trajectory_of(0, 2)
    plain, metrics = agent.learner_step(*arguments)
    weighted, others, _ = agent.weighted_step(*arguments, np.ones(4, np.float32))
    close(plain.shared.params, weighted.shared.params, rtol=1e-6, atol=1e-6)
    close(metrics, others, rtol=1e-5, atol=1e-6)


def test_what_lies_between_episodes_changes_nothing():
    agent = make()
    state = agent.initial_learner_state(jax.random.key(3))
    trajectory = trajectory_of(0, 2)
    action = np.array(trajectory.outputs.action)
    action[STEP_TYPES[:-1] == LAST] = 0.9
    reward = np.array(trajectory.timesteps.reward)
    reward[STEP_TYPES == FIRST] = 1e6
    other = trajectory._replace(
        timesteps=trajectory.timesteps._replace(reward=reward),
        outputs=ActorOutput(action, ()),
    )
    one, two = (
        agent.learner_step(jax.random.key(0), state, x) for x in (trajectory, other)
    )
    jax.tree.map(np.testing.assert_array_equal, one[0].shared, two[0].shared)


def test_a_temperature_that_is_not_learned_stays():
    agent = make(dataclasses.replace(CONFIG, learn_temperature=False))
    state = agent.initial_learner_state(jax.random.key(3))
    after, _ = agent.learner_step(jax.random.key(0), state, trajectory_of(0, 2))
    parts = after.shared.params, state.shared.params
    assert parts[0].log_temperature == parts[1].log_temperature == math.log(0.2)


def test_actions_are_random_until_the_first_update():
    agent, count = make(), 2000
    state = agent.initial_learner_state(jax.random.key(3))
    timestep = dm_env.restart(np.ones((count, 3), np.float32))._replace(
        reward=np.zeros(count), step_type=np.zeros(count, np.int32)
    )
    keys = jax.random.split(jax.random.key(0), count)

    def actions(step, state):
        params = agent.actor_params(state)
        return np.asarray(step(keys, params, (), timestep)[1].action)

    uniform = np.sort(actions(agent.actor_step, state)[:, 0])
    np.testing.assert_allclose(uniform, np.linspace(-1, 1, count), atol=0.08)
    best = actions(agent.greedy_actor_step, state)
    assert (best == best[0]).all()
    state, _ = agent.learner_step(jax.random.key(0), state, trajectory_of(0, 2))
    assert np.abs(actions(agent.actor_step, state)).max() < 1.0
    before = np.arctanh(actions(agent.actor_step, state)[:, 0])
    mode = np.arctanh(actions(agent.greedy_actor_step, state)[0, 0])
    assert before.mean() == pytest.approx(
        float(mode), abs=4 * float(before.std()) / count**0.5
    )


@pytest.mark.parametrize("quantiles", [1, 5])
def test_the_error_of_quantiles_is_that_of_a_slow_loop(quantiles):
    random = np.random.default_rng(0)
    values, target = (2.0 * random.normal(size=(3, quantiles)) for _ in range(2))
    got = losses.critics_loss(jnp.float32(values)[None], jnp.float32(target))
    for row in range(3):
        expected = 0.0
        for i, value in enumerate(values[row]):
            for goal in target[row]:
                u = goal - value
                huber = 0.5 * u**2 if abs(u) <= 1.0 else abs(u) - 0.5
                share = abs((i + 0.5) / quantiles - (u < 0.0))
                expected += share * huber / quantiles
        if quantiles == 1:
            expected = 0.5 * (target[row, 0] - values[row, 0]) ** 2
        assert float(got[row]) == pytest.approx(expected, rel=1e-5)


def test_the_lowest_critic_is_chosen_as_a_whole():
    values = jnp.float32([[[0.0, 4.0], [5.0, 5.0]], [[1.0, 2.0], [9.0, 2.0]]])
    np.testing.assert_array_equal(critics.lowest(values), [[1.0, 2.0], [5.0, 5.0]])


def test_critics_and_policy_see_what_they_are_told():
    observation = {
        "pixels": specs.Array((12, 12, 1), np.uint8),
        "state": specs.Array((3,), np.float32),
    }
    config = dataclasses.replace(SMALL, policy_sees=("pixels",), value_sees=("state",))
    network = sac.make_network(observation, SPECS[1], config)
    params = jax.eval_shape(network.init, jax.random.key(0))
    policy, critic = (
        jax.tree.map(jnp.shape, tree["params"]["shared"])
        for tree in (params.policy, params.critics[0])
    )
    assert critic["MLP_0"]["Dense_0"]["kernel"] == (3 + 2, 4)
    assert "MLP_0" not in policy
    both = sac.make_network(observation, SPECS[1], SMALL)
    shapes = jax.eval_shape(
        lambda key: both.values(
            both.init(key).critics,
            dm_env.TimeStep(
                *jnp.zeros((3, 2, 5)),
                jax.tree.map(
                    lambda x: jnp.zeros((2, 5, *x.shape), x.dtype), observation
                ),
            ),
            jnp.zeros((2, 5, 2)),
        ),
        jax.random.key(0),
    )
    assert shapes.shape == (2, 2, 5, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"memory": "lstm"},
            "memory is lstm, which an actor with critics does not have",
        ),
        ({"last_action": True}, "last_action is True, which"),
        ({"critics": 0}, "critics is 0; it must be at least 1"),
        ({"quantiles": 0}, "quantiles is 0; it must be at least 1"),
        ({"head": heads.Config()}, "head.squash is false, and SAC"),
    ],
)
def test_a_network_that_it_cannot_use_is_one_line(change, message):
    with pytest.raises(UserError, match=message):
        sac.make_network(*SPECS, dataclasses.replace(SMALL, **change))


def test_other_actions_and_networks_are_one_line():
    with pytest.raises(UserError, match="bounds -2 to 2, and SAC acts within -1 and 1"):
        sac.make_network(SPECS[0], Pendulum().action_spec())
    with pytest.raises(UserError, match=r"SAC is for actions \[D\] of floats"):
        sac.make_network(Catch().observation_spec(), Catch().action_spec())
    with pytest.raises(UserError, match="network is Network; SAC has a policy and"):
        sac.make_agent(CONFIG, networks.actor_critic(*SPECS))
    with pytest.raises(UserError, match="discount_factor is 2"):
        sac.Config(discount_factor=2)
