"""LPG's agent: REINFORCE by a rule set by hand, its networks, and the rule's file."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import networks
from podracer.agents import learned_rule, lpg
from podracer.errors import UserError
from podracer.networks import heads
from podracer.rules import files, reinforce
from podracer.rules import lpg as rule
from tests.jitted import jitted, with_drawn
from tests.podracer.rules.experience import BATCH_SIZE, noisy, some_trajectory
from tests.rule_files import returns_rule, returns_weights

SEEN, ACTIONS = specs.Array((3,), np.float32), specs.DiscreteArray(2)
NETWORK = lpg.NetworkConfig(hidden_sizes=(8,), prediction_size=4)
CONFIG = lpg.Config(
    update_rule=returns_rule(), discount_factor=0.9, optimizer="sgd", learning_rate=0.1
)


def make(network=NETWORK, config=CONFIG, seen=SEEN):
    network = with_drawn(lpg.make_network(seen, ACTIONS, network))
    return jitted(lpg.make_agent(config, network))


def with_value(network):
    """The same network for REINFORCE; the value is 0: there is no baseline."""

    def without_y(predictions):
        value = jnp.zeros(predictions.policy.logits.shape[:-1])
        return networks.Predictions(predictions.policy, value)

    return network._replace(
        unroll=lambda *arguments: without_y(network.unroll(*arguments))
    )


@pytest.mark.core
def test_returns_as_targets_are_reinforce():
    """A rule whose LSTM sums up rewards, and no weight of y: Williams' update."""
    config = dataclasses.replace(CONFIG, alpha_y=0.0)
    network = lpg.make_network(SEEN, ACTIONS, NETWORK)
    by_rule = jitted(lpg.make_agent(config, network))
    by_hand = jitted(
        learned_rule.make_agent(
            reinforce.make_rule(reinforce.Config(discount_factor=0.9, value_cost=0.0)),
            (),
            with_value(network),
            lpg.make_optimizer("sgd"),
            config.learning_rate,
        )
    )
    states = [x.initial_learner_state(jax.random.key(0)) for x in (by_rule, by_hand)]
    for seed in range(3):
        trajectory = some_trajectory(seed)
        trajectory = trajectory._replace(
            actor_state=by_rule.initial_actor_state(BATCH_SIZE)
        )
        before = states[0]
        states = [
            agent.learner_step(jax.random.key(1), state, trajectory)[0]
            for agent, state in zip((by_rule, by_hand), states, strict=True)
        ]
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
            *(x.shared.params for x in states),
        )
    moved = jax.tree.map(
        lambda a, b: float(abs(a - b).max()),
        before.shared.params,
        states[0].shared.params,
    )
    assert max(jax.tree.leaves(moved)) > 1e-3


@pytest.mark.parametrize(
    "network",
    [
        dataclasses.replace(NETWORK, memory="lstm", memory_size=4),
        pytest.param("table", marks=pytest.mark.core),
    ],
    ids=["lstm", "table"],
)
def test_an_update_moves_policy_and_prediction(network):
    trajectory = some_trajectory(0)
    seen = SEEN
    if network == "table":
        network, seen = lpg.NetworkConfig(table=True, prediction_size=4), ACTIONS
        timesteps = trajectory.timesteps
        observation = (timesteps.observation[..., 0] > 0).astype(jnp.int32)
        trajectory = trajectory._replace(
            timesteps=timesteps._replace(observation=observation)
        )
    agent = make(network, seen=seen)
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory = trajectory._replace(actor_state=agent.initial_actor_state(BATCH_SIZE))
    # Uniform predictions are already at the target of a rule without an opinion.
    params = noisy(state.shared.params, scale=0.1)
    state = state._replace(shared=state.shared._replace(params=params))
    after, metrics = agent.learner_step(jax.random.key(1), state, trajectory)
    moved = jax.tree.map(
        lambda a, b: (a != np.asarray(b)).any(), params, after.shared.params
    )
    assert all(jax.tree.leaves(moved))
    assert all(np.isfinite(float(x)) for x in metrics.values())


@pytest.mark.core
def test_a_table_begins_uniform_and_has_a_row_for_each_observation():
    network = lpg.make_network(
        specs.DiscreteArray(5), ACTIONS, lpg.NetworkConfig(table=True)
    )
    params = network.init(jax.random.key(0))
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == {"policy": (5, 2), "y": (5, 30)}
    assert not any(x.any() for x in jax.tree.leaves(params))
    params = {
        "policy": params["policy"].at[3].set(jnp.array([1.0, 2.0])),
        "y": params["y"],
    }
    timestep = some_trajectory(0).timesteps
    timestep = jax.tree.map(lambda x: x[0], timestep)
    timestep = timestep._replace(observation=jnp.array([3, 0, 3, 4]))
    memory, (policy, _) = network.step(params, network.initial_memory(4), timestep)
    np.testing.assert_array_equal(policy.logits, [[1, 2], [0, 0], [1, 2], [0, 0]])
    assert memory == ()


@pytest.mark.core
def test_acting_needs_no_file():
    agent = make(config=dataclasses.replace(CONFIG, update_rule=None))
    state = agent.initial_learner_state(jax.random.key(0))
    params, memory = agent.actor_params(state), agent.initial_actor_state(BATCH_SIZE)
    trajectory = some_trajectory(1, actor_state=memory)
    timestep = jax.tree.map(lambda x: x[0], trajectory.timesteps)
    keys = jax.random.split(jax.random.key(2), BATCH_SIZE)
    assert agent.actor_step(keys, params, memory, timestep)[1].action.shape == (4,)
    with pytest.raises(UserError, match="update_rule is missing.*anakin meta-train"):
        agent.learner_step(jax.random.key(3), state, trajectory)


@pytest.mark.core
def test_a_run_keeps_the_checksum_of_its_rule(tmp_path):
    path = tmp_path / "rule.safetensors"
    files.save_rule(path, "lpg", *returns_weights())
    config = lpg.pinned(dataclasses.replace(CONFIG, update_rule=path), NETWORK)
    assert config.update_rule_checksum == files.checksum(returns_rule())
    assert lpg.read_rule(config)[0].prediction_size == 4
    files.save_rule(path, "lpg", *returns_weights(discount_factor=0.5))
    with pytest.raises(UserError, match="the rule file has changed"):
        lpg.read_rule(config)
    assert (
        lpg.pinned(config, NETWORK).update_rule_checksum != config.update_rule_checksum
    )


@pytest.mark.core
def test_weights_of_other_sizes_are_refused(tmp_path):
    path = tmp_path / "rule.safetensors"
    sizes, weights = returns_weights()
    files.save_rule(path, "lpg", dataclasses.replace(sizes, memory_size=3), weights)
    with pytest.raises(UserError, match="a rule of another architecture"):
        lpg.pinned(dataclasses.replace(CONFIG, update_rule=path), NETWORK)


@pytest.mark.core
@pytest.mark.parametrize(
    ("seen", "actions", "network", "line"),
    [
        (
            SEEN,
            specs.BoundedArray((2,), np.float32, -1, 1),
            NETWORK,
            "discrete actions",
        ),
        (SEEN, ACTIONS, lpg.NetworkConfig(table=True), "table is on"),
        (SEEN, ACTIONS, lpg.NetworkConfig(torso="resnet"), "torso is resnet"),
        (SEEN, ACTIONS, lpg.NetworkConfig(separate_value=True), "separate_value is"),
        (
            SEEN,
            ACTIONS,
            lpg.NetworkConfig(head=heads.Config(init_scale=0.1, squash=True)),
            "head.squash is True, which has no effect on LPG: leave it out",
        ),
    ],
)
def test_a_network_that_cannot_be_is_one_line(seen, actions, network, line):
    with pytest.raises(UserError, match=line):
        lpg.make_network(seen, actions, network)
    with pytest.raises(UserError, match="prediction_size is 0"):
        lpg.NetworkConfig(prediction_size=0)


def test_the_tabular_preset_is_the_papers():
    preset = lpg.PRESETS["tabular"]
    assert (preset.unroll_length, preset.batch_size) == (20, 64)
    assert (preset.config.optimizer, preset.config.learning_rate) == ("sgd", 40.0)
    assert preset.network.prediction_size == rule.Sizes().prediction_size == 30


def test_reading_a_rule_starts_no_backend():
    """Commands choose their cores afterwards."""
    code = f"""from podracer.agents import lpg
lpg.read_rule(lpg.Config(update_rule={str(CONFIG.update_rule)!r}))"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JAX_PLATFORMS": "none"},  # starting any backend is an error
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
