"""The same agents in both architectures, and real simulators that teach them."""

import dataclasses

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anakin
import envs_jax
import sebulba
from podracer import networks, parallel
from podracer.agents import (
    AGENTS,
    algorithm,
    batch_ppo,
    dqn,
    from_flags,
    impala,
    lpg,
    muzero,
    ppo,
    pqn,
)
from sebulba import actor, cores, dynamic_actor, host_environments
from sebulba.learner import Learner
from tests.rule_files import returns_rule

MUZERO = muzero.PRESETS["small"]
CONFIGS = {
    "impala": impala.Config(learning_rate=4e-3, entropy_cost=0.01, total_steps=200_000),
    "ppo": ppo.Config(learning_rate=1e-3, total_steps=400_000),
    "pqn": dataclasses.replace(pqn.PRESETS["small"].config, total_steps=400_000),
    # without replay
    "dqn": dqn.Config(
        learning_rate=1e-3, target_period=20, epsilon=0.01, total_steps=400_000
    ),
    "batch_ppo": batch_ppo.Config(
        episodes_per_update=40, max_episode_length=10, learning_rate=3e-3, epochs=10
    ),
    "muzero": MUZERO.config,
    "lpg": lpg.Config(update_rule=returns_rule(), learning_rate=3e-3, alpha_y=0.0),
}


NETWORKS = {
    "muzero": MUZERO.network,
    "lpg": lpg.NetworkConfig(prediction_size=4),
}


def make_agent(name, environment, **network):
    make_network, default = from_flags.network_maker(None, algorithm.of(AGENTS[name]))
    specs = environment.observation_spec(), environment.action_spec()
    config = dataclasses.replace(NETWORKS.get(name, default), **network)
    return AGENTS[name].make_agent(CONFIGS[name], make_network(*specs, config))


def host(name, batch_size=32, **options):
    """A function of the actor thread's number, as `sebulba.train` wants it."""
    options = type(host_environments.default_options(name))(**options)

    def make_environment(thread):
        seed = host_environments.first_seed(0, thread, batch_size)
        return host_environments.make(name, batch_size, seed, 1, options)

    return make_environment


def mean_return(rows, last=20):
    """Over the last rows, each row by its number of episodes."""
    episodes = np.array([row["episodes"] for row in rows[-last:]])
    returns = np.array([row["episode_return"] for row in rows[-last:]])
    return np.nansum(episodes * returns) / episodes.sum()


def in_anakin(agent, total_steps):
    return anakin.train(
        agent,
        envs_jax.make("catch"),
        batch_size=32,
        unroll_length=16,
        total_steps=total_steps,
        cores=2,
    )


def in_sebulba(agent, total_steps):
    return sebulba.train(
        agent,
        host("jax:catch"),
        unroll_length=16,
        total_steps=total_steps,
        cores=cores.split(jax.devices()[:2]),
    )


# MuZero needs more updates than a test has time for.
LEARNS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name != "impala"))
    for name in CONFIGS
    if name != "muzero"
]


@pytest.mark.parametrize(
    "train", [pytest.param(in_anakin, marks=pytest.mark.slow), in_sebulba]
)
@pytest.mark.parametrize("name", LEARNS)
def test_every_agent_learns_catch_in_both(name, train):
    agent = make_agent(name, envs_jax.make("catch"))
    rows = []
    for state, metrics in train(agent, 200_000 if name == "impala" else 400_000):
        rows.append(metrics)
    assert mean_return(rows) >= 0.9
    expected = jax.eval_shape(agent.initial_learner_state, jax.random.key(0))
    assert jax.tree.structure(state.learner) == jax.tree.structure(expected)
    for leaf in jax.tree.leaves(state.learner.shared):
        copies = {np.asarray(x.data).tobytes() for x in leaf.addressable_shards}
        assert len(copies) == 1


def test_a_trajectory_has_the_same_loss_in_both():
    """What Sebulba learns in parts on two cores is Anakin's update of the whole."""
    environment = host("jax:catch", batch_size=4)(0)
    agent = make_agent("impala", environment)
    learner = Learner(agent, parallel.mesh_of(jax.devices()[2:4]), 1)
    learner.begin(jax.random.key(0))
    programs = actor.make_programs(agent, unroll_length=6, parts=2)
    params = parallel.on_device(learner.params, jax.devices()[0])
    timestep = environment.reset()
    start, unroll = programs.start(params, jax.random.key(1), timestep)
    keys = programs.keys(start)
    for _ in range(6):
        unroll, action = programs.step(params, keys, unroll, timestep)
        timestep = environment.step(np.asarray(action))
    _, parts, _ = programs.finish(start, unroll, timestep)
    before = jax.device_get(learner.state.learner)
    whole = jax.tree.map(
        lambda word, *x: jax.tree.map(
            lambda *y: np.concatenate(y, axis=int(word == parallel.SEQUENCE)), *x
        ),
        actor.LAYOUT,
        *parts,
    )
    learner.learn(parts)
    got = learner.metrics()
    after, metrics = jax.jit(agent.learner_step)(jax.random.key(0), before, whole)
    for name, value in metrics.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        jax.device_get(learner.state.learner.shared.params),
        after.shared.params,
    )


def test_the_key_of_a_decision_depends_on_the_environment_and_the_step_alone():
    agent = make_agent("impala", host("jax:catch", batch_size=4)(0))

    def keys(size, first=0, steps=0, unroll_length=6):
        timestep = dm_env.TimeStep(None, np.zeros(size), None, None)
        start = actor.UnrollStart(
            None, None, jax.random.key(1), jnp.uint32(steps), timestep
        )
        programs = actor.make_programs(agent, unroll_length, 1, first)
        return jax.random.key_data(programs.keys(start))

    expected = np.asarray(keys(4, unroll_length=12))
    assert len(np.unique(expected.reshape(48, 2), axis=0)) == 48
    np.testing.assert_array_equal(keys(4), expected[:6])
    np.testing.assert_array_equal(keys(4, steps=6), expected[6:])
    np.testing.assert_array_equal(keys(2, first=2, steps=6), expected[6:, 2:])


def test_a_decision_is_the_same_whichever_environments_are_ready():
    environment = host("jax:catch", batch_size=4)(0)
    agent = make_agent("impala", environment)
    params = agent.actor_params(jax.jit(agent.initial_learner_state)(jax.random.key(0)))
    timestep = environment.reset()

    def trajectory(module, steps):
        programs = module.make_programs(agent, 2, 1)
        start, unroll = programs.start(params, jax.random.key(1), timestep)
        keys = programs.keys(start)
        for part, *which in steps:
            unroll, _ = programs.step(params, keys, unroll, part, *which)
        return programs.finish(start, unroll, timestep).parts[0]

    first, last = np.array([0, 1], np.int32), np.array([2, 3], np.int32)
    parts = [
        (jax.tree.map(lambda x, at=which: x[at], timestep), which)
        for which in (last, last, first, first)
    ]
    expected = trajectory(actor, [(timestep,), (timestep,)])
    got = trajectory(dynamic_actor, parts)
    assert len(np.unique(expected.outputs.action)) > 1
    np.testing.assert_array_equal(got.outputs.action, expected.outputs.action)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        got,
        expected,
    )


@pytest.mark.slow
def test_envpool_cartpole():
    """In lock-step, so that the test is the same each time."""
    make_environment = host("CartPole-v1")
    agent = AGENTS["impala"].make_agent(
        impala.Config(learning_rate=2e-3, entropy_cost=0.01, total_steps=1_000_000),
        networks.actor_critic(
            make_environment(0).observation_spec(), make_environment(0).action_spec()
        ),
    )
    rows = [
        metrics
        for _, metrics in sebulba.train(
            agent,
            make_environment,
            unroll_length=16,
            total_steps=1_000_000,
            cores=cores.split(jax.devices()[:2]),
            threads_per_core=1,
            max_lag=0,
        )
    ]
    print("EnvPool CartPole:", mean_return(rows, last=10))
    assert mean_return(rows, last=10) >= 475


@pytest.mark.slow
def test_a_recurrent_agent_remembers():
    make_environment = host("jax:memory-chain", length=3)
    agent = make_agent(
        "impala", make_environment(0), hidden_sizes=(16,), memory="lstm", memory_size=16
    )
    rows = [
        metrics
        for _, metrics in sebulba.train(
            agent,
            make_environment,
            unroll_length=8,
            total_steps=150_000,
            cores=cores.split(jax.devices()[:2]),
        )
    ]
    assert mean_return(rows) >= 0.9  # without a memory it stays at 0
