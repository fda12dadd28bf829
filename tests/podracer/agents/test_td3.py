"""TD3: its updates against float64, its noise, and what it refuses."""

import dataclasses
import functools

import dm_env
import jax
import numpy as np
import pytest

from envs_jax import Pendulum
from podracer import networks
from podracer.agents import td3
from podracer.errors import UserError
from podracer.networks import heads
from podracer.transformations import scaled_action_spec
from tests.float64 import (
    Adam,
    close,
    mlp,
    slope,
    trajectory_of,
    transitions64,
    values64,
    wide,
)
from tests.jitted import jitted, with_drawn

FIRST, MID, _ = (int(x) for x in dm_env.StepType)
SPECS = Pendulum().observation_spec(), scaled_action_spec(Pendulum().action_spec())
SMALL = td3.NetworkConfig(hidden_sizes=(4,))
CONFIG = td3.Config(
    learning_rate=3e-3,
    critic_learning_rate=1e-2,
    target_rate=0.1,
    target_noise=0.5,
    exploration_noise=0.1,
    max_exploration_noise=0.3,
)


@functools.cache  # compiled once for all tests
def make(config=CONFIG):
    network = with_drawn(td3.make_network(*SPECS, SMALL))
    agent = jitted(td3.make_agent(config, network))
    return agent._replace(weighted_step=jax.jit(agent.weighted_step))


def action64(params, observation):
    return np.tanh(mlp(params, observation, "policy_head"))


class Reference:
    """TD3 as the paper has it, in numpy."""

    def __init__(self, params):
        self.policy, self.critics = wide(params)
        self.targets = self.policy, self.critics
        rates = CONFIG.learning_rate, CONFIG.critic_learning_rate
        self.policy_adam, self.critics_adam = map(Adam, rates)
        self.updates = 0

    def step(self, trajectory, noise, weight):
        timesteps, (action, _), _ = wide(trajectory)
        x_tm1, x_t = timesteps.observation[:-1], timesteps.observation[1:]
        reward, discount, mask = transitions64(trajectory.timesteps)
        noise = np.clip(CONFIG.target_noise * noise, -0.5, 0.5)
        a_t = np.clip(action64(self.targets[0], x_t) + noise, -1.0, 1.0)
        v_t = values64(self.targets[1], x_t, a_t).min(0)
        target = reward + CONFIG.discount_factor * discount * v_t
        times = mask * weight / mask.size

        def critic_loss(params):
            errors = values64(params, x_tm1, action) - target
            return np.sum(times * 0.5 * errors**2)

        def policy_loss(params):
            return -np.sum(
                times * values64(self.critics, x_tm1, action64(params, x_tm1))[0]
            )

        errors = np.abs(values64(self.critics, x_tm1, action) - target).mean(0)
        self.critics = self.critics_adam.step(
            self.critics, slope(critic_loss, self.critics)
        )
        self.updates += 1
        if self.updates % 2 == 0:
            self.policy = self.policy_adam.step(
                self.policy, slope(policy_loss, self.policy)
            )
            self.targets = jax.tree.map(
                lambda old, new: old + CONFIG.target_rate * (new - old),
                self.targets,
                (self.policy, self.critics),
            )
        return (mask * errors).mean(0)


@pytest.mark.core
def test_twenty_updates_are_those_of_float64():
    """Targets, smoothing, delay, target networks, importance weights and priorities."""
    agent = make()
    state = agent.initial_learner_state(jax.random.key(3))
    reference = Reference(state.shared.params)
    weight = np.float32([0.5, 1.0, 0.25, 2.0])
    for update in range(20):
        key, trajectory = jax.random.key(update), trajectory_of(update)
        noise = np.float64(jax.random.normal(key, (3, 4, 1)))
        state, metrics, priority = agent.weighted_step(key, state, trajectory, weight)
        close(priority, reference.step(trajectory, noise, weight))
        assert (metrics["loss/policy"] == 0.0) == (update % 2 == 0)
        if update in (0, 1, 19):
            shared = state.shared
            close(shared.params.policy, reference.policy)
            close(shared.params.critics, reference.critics)
            close(tuple(shared.targets), reference.targets)


def acted(agent, state, count, step_type, actor_state, seed):
    observation = np.ones((count, 3), np.float32)
    timestep = dm_env.TimeStep(
        np.full(count, step_type, np.int32),
        np.zeros(count),
        np.ones(count),
        observation,
    )
    keys = jax.random.split(jax.random.key(seed), count)
    params = agent.actor_params(state)
    actor_state, output = agent.actor_step(keys, params, actor_state, timestep)
    best = agent.greedy_actor_step(keys, params, actor_state, timestep)[1]
    return actor_state, np.asarray(output.action), np.asarray(best.action)


def test_noise_is_drawn_for_an_episode():
    agent, count = make(), 4000
    state = agent.initial_learner_state(jax.random.key(3))
    _, action, _ = acted(agent, state, count, FIRST, np.zeros(count), 0)
    uniform = np.sort(action[:, 0])  # before the first update
    np.testing.assert_allclose(uniform, np.linspace(-1, 1, count), atol=0.08)
    state, _ = agent.learner_step(jax.random.key(0), state, trajectory_of(0))
    deviation, action, best = acted(agent, state, count, FIRST, np.zeros(count), 1)
    spread = np.sort(np.asarray(deviation))
    np.testing.assert_allclose(spread, np.linspace(0.1, 0.3, count), atol=0.02)
    assert np.abs(best).max() < 0.5  # so that the bounds clip hardly any action
    relative = (action - best)[:, 0] / np.asarray(deviation)
    assert relative.std() == pytest.approx(1.0, abs=0.05)
    assert relative.mean() == pytest.approx(0.0, abs=0.05)
    again, _, _ = acted(agent, state, count, MID, deviation, 2)
    np.testing.assert_array_equal(again, deviation)


def test_what_it_cannot_use_is_one_line():
    with pytest.raises(UserError, match=r"head.squash is True.*TD3"):
        td3.make_network(
            *SPECS, dataclasses.replace(SMALL, head=heads.Config(squash=True))
        )
    with pytest.raises(UserError, match="network is Network; TD3 has a policy and"):
        td3.make_agent(CONFIG, networks.actor_critic(*SPECS))
    with pytest.raises(UserError, match="policy_delay is 0"):
        td3.Config(policy_delay=0)
    with pytest.raises(UserError, match=r"max_exploration_noise is 0.1.*at least 0.2"):
        td3.Config(exploration_noise=0.2, max_exploration_noise=0.1)
