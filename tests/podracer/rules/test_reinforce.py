"""The slot: a hand-written rule in it is the algorithm, written without the slot."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from podracer import networks
from podracer.agents import learned_rule
from podracer.rules import reinforce
from tests.jitted import jitted, jitted_network, with_drawn
from tests.podracer.rules.experience import BATCH_SIZE, LENGTH, some_trajectory

CONFIG = reinforce.Config(discount_factor=0.9, value_cost=0.7)
LEARNING_RATE = 0.1


def make(memory="none"):
    network = networks.actor_critic(
        specs.Array((3,), np.float32),
        specs.DiscreteArray(2),
        networks.Config(hidden_sizes=(8,), memory=memory, memory_size=4),
    )
    network = with_drawn(network)
    rule = reinforce.make_rule(CONFIG)
    agent = learned_rule.make_agent(
        rule, (), network, optax.identity(), LEARNING_RATE, lambda gradients: gradients
    )
    return jitted_network(network), jitted(agent)


def returns_of(timesteps, value):
    """The return of each step that counts, summed up from its definition: [T, B], or NaN."""
    step_type, reward, discount, _ = map(np.asarray, timesteps)
    got = np.full((LENGTH, BATCH_SIZE), np.nan)
    for b in range(BATCH_SIZE):
        for start in range(LENGTH):
            t, weight, total = start, 1.0, 0.0
            while t < LENGTH and step_type[t, b] != 2 and step_type[t + 1, b] != 0:
                total += weight * reward[t + 1, b]
                weight *= CONFIG.discount_factor * discount[t + 1, b]
                t += 1
            if t > start:
                got[start, b] = total + weight * value[t, b]
    return got


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_the_slot_reproduces_reinforce_with_a_baseline(memory):
    network, agent = make(memory)

    @jax.jit
    @jax.grad
    def gradient(params, trajectory, counts, advantage, returns):
        policy, value = network.unroll(
            params, trajectory.actor_state, trajectory.timesteps
        )
        log_pi = jax.nn.log_softmax(policy.logits[:-1])
        action = trajectory.outputs.action
        taken = jnp.take_along_axis(log_pi, action[..., None], -1)[..., 0]
        errors = jnp.square(returns - value[:-1])
        each = -advantage * taken + CONFIG.value_cost * 0.5 * errors
        return jnp.sum(counts * each) / (LENGTH * BATCH_SIZE)

    state = agent.initial_learner_state(jax.random.key(0))
    params = state.shared.params
    for seed in range(3):
        trajectory = some_trajectory(
            seed, actor_state=agent.initial_actor_state(BATCH_SIZE)
        )
        _, value = network.unroll(params, trajectory.actor_state, trajectory.timesteps)
        value = np.asarray(value)
        returns = returns_of(trajectory.timesteps, value.astype(np.float64))
        # Void: from LAST to FIRST, and to the FIRST that follows MID.
        np.testing.assert_array_equal(
            np.argwhere(np.isnan(returns)), [[0, 3], [2, 0], [2, 1], [2, 2]]
        )
        counts = np.float32(~np.isnan(returns))
        advantage = np.float32(np.nan_to_num(returns - value[:-1]))
        returns = np.float32(np.nan_to_num(returns))
        gradients = gradient(params, trajectory, counts, advantage, returns)
        params, gradients = jax.tree.map(np.asarray, (params, gradients))
        params = jax.tree.map(lambda x, g: x - LEARNING_RATE * g, params, gradients)
        state, metrics = agent.learner_step(jax.random.key(0), state, trajectory)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
            state.shared.params,
            params,
        )
        norm = sum(np.sum(np.square(x)) for x in jax.tree.leaves(gradients)) ** 0.5
        assert float(metrics["gradient_norm"]) == pytest.approx(float(norm), rel=1e-4)


def test_acting_is_of_the_policy_that_is_learned():
    network, agent = make()
    params = agent.actor_params(agent.initial_learner_state(jax.random.key(0)))
    timestep = jax.tree.map(lambda x: x[0], some_trajectory(1).timesteps)
    keys = jax.random.split(jax.random.key(2), BATCH_SIZE)
    memory = agent.initial_actor_state(BATCH_SIZE)
    _, output = agent.actor_step(keys, params, memory, timestep)
    _, greedy = agent.greedy_actor_step(keys, params, memory, timestep)
    policy = network.step(params, memory, timestep)[1].policy
    np.testing.assert_allclose(output.extras.logits, policy.logits, atol=1e-6)
    np.testing.assert_array_equal(output.action, policy.sample(keys))
    np.testing.assert_array_equal(greedy.action, policy.mode())
