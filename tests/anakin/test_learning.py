"""Agents learn: what takes seconds on two cores."""

import statistics

import numpy as np

import anakin
import envs_jax
from podracer import networks
from podracer.agents import impala
from tests.environments import Bandit


def learn(environment, network, config, seed=0, **options):
    """Trains and evaluates: the last metrics, and returns of 100 greedy episodes."""
    agent = impala.make_agent(
        config,
        networks.actor_critic(
            environment.observation_spec(), environment.action_spec(), network
        ),
    )
    seconds = 0.0
    for state, metrics in anakin.train(agent, environment, seed=seed, **options):
        seconds += metrics["seconds"]
    params = agent.actor_params(state.learner)
    evaluation = anakin.evaluate(agent, params, environment, seed=seed + 1)
    assert evaluation.finished.all()
    return metrics | {"training_seconds": seconds}, evaluation.episode_return


def test_a_bandit_at_discount_0():
    """Rewards paired with the wrong actions leave no signal here (at 0.99 they do)."""
    _, returns = learn(
        Bandit(),
        networks.Config(hidden_sizes=(8,)),
        impala.Config(discount_factor=0.0, learning_rate=0.01),
        batch_size=16,
        unroll_length=8,
        total_steps=20_000,
        cores=1,
    )
    assert returns.mean() == 5.0  # random play gets 0


def test_catch_in_less_than_20_seconds():
    metrics, returns = learn(
        envs_jax.make("catch"),
        networks.Config(),
        impala.Config(learning_rate=1e-3, total_steps=800_000),
        batch_size=64,
        unroll_length=16,
        total_steps=800_000,
        cores=2,
    )
    print(f"Catch: {returns.mean()} after {metrics['training_seconds']:.1f} s")
    assert returns.mean() >= 0.95
    assert metrics["training_seconds"] < 20.0


def test_cartpole_with_five_seeds():
    means = []
    for seed in range(5):
        _, returns = learn(
            envs_jax.make("cartpole"),
            networks.Config(),
            impala.Config(learning_rate=2e-3, entropy_cost=0.01, total_steps=1_000_000),
            seed=seed,
            batch_size=32,
            unroll_length=16,
            total_steps=1_000_000,
            cores=1,
        )
        means.append(float(returns.mean()))
    print(f"CartPole: median {statistics.median(means)}, range {sorted(means)}")
    assert min(means) >= 475.0


def test_only_a_memory_solves_the_memory_chain():
    means = {}
    for memory in ("none", "lstm"):
        _, returns = learn(
            envs_jax.make("memory-chain"),
            networks.Config(hidden_sizes=(32,), memory=memory, memory_size=32),
            impala.Config(learning_rate=3e-3, entropy_cost=0.01),
            batch_size=64,
            unroll_length=12,
            total_steps=300_000,
            cores=1,
        )
        means[memory] = np.mean(returns)
    assert means["lstm"] > 0.95
    assert abs(means["none"]) < 0.5
