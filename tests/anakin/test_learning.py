"""Agents learn: what takes seconds on two cores."""

import statistics
import time

import numpy as np
import pytest

import anakin
import envs_jax
from podracer import networks, parallel
from podracer.agents import impala
from tests.environments import Bandit


def learn(environment, network=networks.Config(), *, config, **options):
    """Trains; the final state and metrics, and the agent."""
    agent = impala.make_agent(
        config,
        networks.actor_critic(
            environment.observation_spec(), environment.action_spec(), network
        ),
    )
    for state, metrics in anakin.train(agent, environment, cores=1, **options):
        pass
    return agent, state, metrics


def test_a_bandit_at_discount_0():
    """Rewards paired with the wrong actions leave no signal here (they do at 0.99)."""
    _, _, metrics = learn(
        Bandit(),
        networks.Config(hidden_sizes=(8,)),
        config=impala.Config(discount_factor=0.0, learning_rate=0.01),
        batch_size=16,
        unroll_length=8,
        total_steps=20_000,
        updates_per_call=20,
    )
    assert metrics["episode_return"] > 4.5  # of 5; random play gets 0
