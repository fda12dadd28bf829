"""Agents learn: what takes seconds on two cores."""

import statistics

import numpy as np
import pytest

import anakin
import envs_jax
from podracer import networks
from podracer.agents import algorithm, batch_ppo, from_flags, impala, ppo
from tests.environments import Bandit, Bandits


def learn(environment, network, config, seed=0, module=impala, **options):
    """Trains and evaluates: the returns of 100 greedy episodes."""
    agent = module.make_agent(
        config,
        networks.actor_critic(
            environment.observation_spec(), environment.action_spec(), network
        ),
    )
    for state, _ in anakin.train(agent, environment, seed=seed, **options):
        pass
    params = agent.actor_params(state.learner)
    evaluation = anakin.evaluate(agent, params, environment, seed=seed + 1)
    assert evaluation.finished.all()
    return evaluation.episode_return


AT_DISCOUNT_0 = {
    impala: impala.Config(discount_factor=0.0, learning_rate=0.01),
    ppo: ppo.Config(discount_factor=0.0, learning_rate=0.01),
    batch_ppo: batch_ppo.Config(
        discount_factor=0.0,
        learning_rate=0.01,
        episodes_per_update=16,
        max_episode_length=5,
        epochs=10,
    ),
}


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x is not ppo), id=x.__name__[16:])
        for x in AT_DISCOUNT_0
    ],
)
@pytest.mark.parametrize(
    "environment",
    [pytest.param(Bandit(), marks=pytest.mark.slow), Bandits()],
    ids=["one", "several"],
)
def test_a_bandit_at_discount_0(environment, module):
    """Rewards paired with the wrong actions leave no signal here (at 0.99 they do)."""
    returns = learn(
        environment,
        networks.Config(hidden_sizes=(8,)),
        AT_DISCOUNT_0[module],
        module=module,
        batch_size=16,
        unroll_length=8,
        total_steps=20_000,
        cores=1,
    )
    assert returns.mean() == 5.0  # random play gets less than 0


def test_catch():
    returns = learn(
        envs_jax.make("catch"),
        networks.Config(hidden_sizes=(32,)),
        impala.Config(learning_rate=2e-3, total_steps=400_000),
        batch_size=64,
        unroll_length=16,
        total_steps=400_000,
        cores=2,
    )
    assert returns.mean() >= 0.95


@pytest.mark.slow
def test_cartpole_with_five_seeds():
    means = []
    for seed in range(5):
        returns = learn(
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


@pytest.mark.slow
@pytest.mark.parametrize("module", [impala, ppo], ids=["impala", "ppo"])
def test_only_a_memory_solves_the_memory_chain(module):
    means = {}
    for memory in ("none", "lstm"):
        returns = learn(
            envs_jax.make("memory-chain"),
            networks.Config(hidden_sizes=(8,), memory=memory, memory_size=8),
            # The rate decays: at a constant one, PPO sometimes loses what it has learned.
            module.Config(learning_rate=1e-2, entropy_cost=0.01, total_steps=40_000),
            module=module,
            batch_size=64,
            unroll_length=12,
            total_steps=40_000,
            cores=1,
        )
        means[memory] = np.mean(returns)
    assert means["lstm"] > 0.95
    assert abs(means["none"]) < 0.5


@pytest.mark.slow
def test_pendulum_swings_up():
    """Random play gets about -1,200; the full run is in benchmarks.learning."""
    environment, preset = envs_jax.make("pendulum"), ppo.PRESETS["continuous"]
    agent = from_flags.make_agent(
        from_flags.Parts(
            algorithm.of(ppo),
            from_flags.for_run(preset.config, 100_000),
            preset.network,
            environment.observation_spec(),
            environment.action_spec(),
            preset.interface,
        )
    )
    run = anakin.train(
        agent,
        environment,
        batch_size=preset.batch_size,
        unroll_length=preset.unroll_length,
        total_steps=100_000,
        cores=2,
    )
    for state, _ in run:
        pass
    evaluation = anakin.evaluate(agent, agent.actor_params(state.learner), environment)
    assert evaluation.episode_return.mean() >= -300
