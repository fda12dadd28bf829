"""Every agent of discrete actions takes what a mask allows, in both halves of its work."""

import numpy as np
import pytest

import anakin
import envs_jax
from podracer import networks
from podracer.agents import (
    AGENTS,
    algorithm,
    batch_ppo,
    disco,
    dqn,
    from_flags,
    impala,
    lpg,
    muzero,
    ppo,
    pqn,
)
from podracer.networks import action_model, world_model
from tests.disco_files import random_rule
from tests.environments import Forbidding, Stuck
from tests.rule_files import returns_rule

SIZES = {"batch_size": 16, "unroll_length": 5}
PLAIN = networks.Config(hidden_sizes=(16,))
AGENTS_AND_NETWORKS = {
    "batch_ppo": (
        batch_ppo.Config(episodes_per_update=16, max_episode_length=5),
        PLAIN,
    ),
    "disco": (
        disco.Config(update_rule=random_rule()),
        action_model.Config(
            hidden_sizes=(8,), embedding_size=8, model_size=4, head_size=4
        ),
    ),
    "dqn": (
        dqn.Config(learning_rate=0.01, target_period=5),
        dqn.NetworkConfig(hidden_sizes=(16,), quantiles=3, dueling=True),
    ),
    "impala": (impala.Config(learning_rate=0.01), PLAIN),
    "lpg": (
        lpg.Config(update_rule=returns_rule()),
        lpg.NetworkConfig(hidden_sizes=(8,), prediction_size=4),
    ),
    "muzero": (
        muzero.Config(num_simulations=3, unroll_steps=2),
        world_model.Config(hidden_size=8),
    ),
    "ppo": (ppo.Config(learning_rate=0.01), PLAIN),
    "pqn": (pqn.Config(learning_rate=0.01), pqn.NetworkConfig(hidden_sizes=(16,))),
}
LEARNERS = "dqn", "impala", "ppo", "pqn"  # MuZero's search has mask tests of its own


def make(name, environment):
    config, network = AGENTS_AND_NETWORKS[name]
    return from_flags.make_agent(
        from_flags.Parts(
            algorithm.of(AGENTS[name]),
            config,
            network,
            environment.observation_spec(),
            environment.action_spec(),
        )
    )


def test_the_environment_keeps_the_contract():
    envs_jax.check(Forbidding())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[] if x == "dqn" else pytest.mark.slow)
        for x in AGENTS_AND_NETWORKS
    ],
)
def test_no_agent_takes_what_is_forbidden(name):
    """NaN would stop the run: no reward, loss, entropy or gradient has any."""
    updates = 60 if name in LEARNERS else 4
    environment = Forbidding()
    agent = make(name, environment)
    *_, (state, row) = anakin.train(
        agent, environment, cores=2, total_steps=80 * updates, **SIZES
    )
    if name in LEARNERS:
        assert row["episode_return"] > 4.0  # at first 2.5, of 5
    params = agent.actor_params(state.learner)
    played = anakin.evaluate(agent, params, environment, episodes=8)
    assert np.isfinite(played.episode_return).all()


def test_a_mask_that_allows_nothing_stops_the_run():
    environment = Stuck()
    with pytest.raises(
        FloatingPointError, match="action_mask allows no action in the middle"
    ):
        for _ in anakin.train(
            make("impala", environment), environment, cores=1, total_steps=800, **SIZES
        ):
            pass
