"""Every agent: the same on any number of cores, and equal on all of them."""

import dataclasses
import functools
import math

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anakin
from anakin import checks, training
from envs_jax import Batched, Catch, Pendulum, TimeLimit, auto_reset
from podracer import networks, parallel
from podracer.agents import (
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
    sac,
    td3,
)
from podracer.metrics import tally
from podracer.networks import action_model, world_model
from podracer.transformations import Interface
from tests.disco_files import random_rule
from tests.environments import Bandit, Counter, Mixed
from tests.rounding import without_lost
from tests.rule_files import returns_rule

NETWORK = networks.Config(hidden_sizes=(8,))
RECURRENT = dataclasses.replace(NETWORK, memory="gru", memory_size=4)
LINEAR = dataclasses.replace(RECURRENT, memory="lru")
TRANSFORMER = dataclasses.replace(RECURRENT, memory="gtrxl")
PRIVILEGED = dataclasses.replace(
    NETWORK, policy_sees=("action_mask", "pixels"), value_sees=("pixels", "state")
)
NORMALIZED = Interface(normalize_observations=True, normalize_rewards=True)
PPO = ppo.Config(epochs=2, minibatches=1)
PQN = pqn.Config(epochs=2, minibatches=1, learning_rate=1e-4, total_steps=1_000)
NORMED = pqn.NetworkConfig(hidden_sizes=(8,))
DQN = dqn.Config(learning_rate=1e-4, target_period=2, return_steps=2, burn_in=1)
QUANTILES = dqn.NetworkConfig(
    hidden_sizes=(8,), memory="gru", memory_size=4, quantiles=3, dueling=True
)
# One episode of 5 steps in each of the 8 environments, all finished at once.
BATCH_PPO = batch_ppo.Config(episodes_per_update=8, max_episode_length=5, epochs=3)
# Adam's first steps are signs, which rounding may flip where a gradient is almost 0: such
# steps are tiny here and in MuZero's case, and Adam's moments tell whether cores agree.
DISCO = disco.Config(update_rule=random_rule(), learning_rate=1e-6)
ACTION_MODEL = action_model.Config(
    hidden_sizes=(8,), embedding_size=8, model_size=4, head_size=4
)
LPG = lpg.Config(update_rule=returns_rule())
PREDICTING = lpg.NetworkConfig(hidden_sizes=(8,), prediction_size=4)
PENDULUM = TimeLimit(Pendulum(), 5)
MUZERO = muzero.Config(num_simulations=3, unroll_steps=2, learning_rate=1e-6)
MODEL = world_model.Config(hidden_size=8)
SAC, TD3 = sac.NetworkConfig(hidden_sizes=(8,)), td3.NetworkConfig(hidden_sizes=(8,))
CASES = {
    "ppo": (ppo, PPO, NETWORK, Interface(), Catch()),
    "ppo-recurrent": (ppo, PPO, RECURRENT, Interface(), Catch()),
    "ppo-linear": (ppo, PPO, LINEAR, Interface(), Catch()),
    "ppo-transformer": (ppo, PPO, TRANSFORMER, Interface(), Catch()),
    "ppo-mixed": (ppo, PPO, PRIVILEGED, NORMALIZED, Mixed()),
    "ppo-continuous": (ppo, PPO, NETWORK, NORMALIZED, PENDULUM),
    "impala-continuous": (impala, impala.Config(), NETWORK, NORMALIZED, PENDULUM),
    "disco": (disco, DISCO, ACTION_MODEL, Interface(), Catch()),
    "lpg": (lpg, LPG, PREDICTING, Interface(), Catch()),
    "pqn": (pqn, PQN, NORMED, Interface(), Catch()),
    "dqn": (dqn, DQN, QUANTILES, Interface(), Catch()),
    "batch_ppo": (batch_ppo, BATCH_PPO, NETWORK, Interface(), PENDULUM),
    "muzero": (muzero, MUZERO, MODEL, Interface(), Catch()),
    "sac": (sac, sac.Config(), SAC, Interface(), PENDULUM),
    "td3": (td3, td3.Config(policy_delay=1), TD3, Interface(), PENDULUM),
}
NOISY = ("sac", "td3")  # learn with noise that each core draws for itself


def make(case, sees=None, **config):
    """The case's agent and environment; `sees` are options of its network."""
    module, default, network, interface, environment = CASES[case]
    agent = from_flags.make_agent(
        from_flags.Parts(
            algorithm.of(module),
            dataclasses.replace(default, **config),
            dataclasses.replace(network, **sees or {}),
            environment.observation_spec(),
            environment.action_spec(),
            interface,
        )
    )
    return agent, Batched(auto_reset(environment))


@functools.cache
def programs(case, cores, **config):
    """(key, index) -> the first state, and state -> the state after an update."""
    agent, environment = make(case, **config)
    mesh = parallel.make_mesh(cores)
    start = parallel.over_cores(
        lambda key, index: training.initial_state(key, index, agent, environment),
        mesh,
        (parallel.SHARED, parallel.BATCH),
        training.LAYOUT,
    )
    unit = training.make_step(agent, environment, 4)
    step = parallel.over_cores(
        lambda state: unit(state)[0], mesh, (training.LAYOUT,), training.LAYOUT
    )
    return start, step


def trained(case, cores, updates=3, **config):
    """The last state on that many cores, after single updates."""
    start, step = programs(case, cores, **config)
    state = start(jax.random.key(0), jnp.arange(8))
    for _ in range(updates):
        state = jax.block_until_ready(step(state))
    return state


# Another case of the same agents, or an agent whose programs compile for half a minute.
SLOW = ("impala-continuous", "disco", "muzero", "ppo-mixed") + tuple(
    f"ppo-{which}" for which in ("recurrent", "linear", "transformer", "continuous")
)
# Their updates are those of one core in podracer/agents/test_cores.py.
SLOW += "impala", "ppo", "pqn", "dqn"
MARKED = [
    pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW))
    for x in CASES
    if x not in NOISY
]


@pytest.mark.parametrize("case", MARKED)
@pytest.mark.parametrize(
    "numbers", [(8,), pytest.param((2, 4), marks=pytest.mark.slow)], ids=str
)
def test_any_number_of_cores_learns_the_same(case, numbers):
    one = trained(case, 1).learner.shared
    for cores in numbers:
        many = trained(case, cores).learner.shared
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4),
            without_lost(one),
            without_lost(many),
        )
        for leaf in jax.tree.leaves(many):
            copies = [np.asarray(x.data) for x in leaf.addressable_shards]
            assert all((x == copies[0]).all() for x in copies)


def metrics(case, updates=1, **config):
    """Of the last of some updates on one core."""
    agent, environment = make(case, **config)
    unit = training.make_step(agent, environment, 4)

    @jax.jit
    def last():
        args = jax.random.key(0), jnp.arange(8), agent, environment
        state = training.initial_state(*args)
        _, found = jax.lax.scan(lambda x, _: unit(x), state, length=updates)
        return jax.tree.map(lambda x: x[-1], found)

    return last()


@dataclasses.dataclass(frozen=True)
class Cents(Bandit):
    """Rewards far from 1; its observation is constant, so statistics do not change it."""

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return state, timestep._replace(reward=timestep.reward / 100)


@pytest.mark.parametrize(
    ("case", "config", "updates"),
    [
        ("ppo-continuous", {"epochs": 1, "reward_clipping": "soft_asymmetric"}, 1),
        ("batch_ppo-constant", {"learning_rate": 1e-12}, 2),
    ],
)
def test_the_last_reward_that_a_network_sees_is_the_one_it_acted_on(
    case, config, updates, monkeypatch
):
    """However rewards are scaled for the returns: else the policy seems to have moved."""
    constant = batch_ppo, BATCH_PPO, NETWORK, Interface(), Cents()
    monkeypatch.setitem(CASES, "batch_ppo-constant", constant)
    found = metrics(case, updates, sees={"last_reward": True}, **config)
    assert float(found["kl"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("ppo", {"epochs": 2, "minibatches": 2}),
        ("sac", {}),
        pytest.param("td3", {}, marks=pytest.mark.slow),
    ],
    ids=["ppo", "sac", "td3"],
)
def test_cores_draw_for_themselves_and_average_every_gradient(case, config):
    """What N cores do, one can: as N maps over an axis of that name."""
    got = trained(case, 4, updates=1, **config).learner.shared.params
    for leaf in jax.tree.leaves(got):
        copies = [np.asarray(x.data) for x in leaf.addressable_shards]
        assert all((x == copies[0]).all() for x in copies)

    agent, environment = make(case, **config)

    def core(index):
        state = training.initial_state(jax.random.key(0), index, agent, environment)
        return training.make_step(agent, environment, 4)(state)[0]

    expected = jax.jit(jax.vmap(core, axis_name=parallel.CORE))(
        jnp.arange(8).reshape(4, 2)
    ).learner.shared.params
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b[0], atol=1e-5), got, expected
    )


def test_batch_ppo_learns_when_the_episodes_are_there():
    # Rows 5 and 11 of each environment are LAST: in the second and third trajectory.
    for updates, learned in ((1, 0), (2, 1), (3, 2)):
        state = trained("batch_ppo", 8, updates)
        steps = state.learner.shared.opt_state[0].count
        assert int(steps) == learned * BATCH_PPO.epochs
        np.testing.assert_array_equal(state.learner.local.count, [0] * 8)


@pytest.mark.parametrize("length", [6, pytest.param(1000, marks=pytest.mark.slow)])
def test_an_episode_longer_than_the_memory_stops_the_run(length):
    agent, _ = make("batch_ppo")
    run = anakin.train(
        agent,
        TimeLimit(Pendulum(), length),
        batch_size=8,
        unroll_length=4,
        total_steps=1_000,
        cores=1,
    )
    with pytest.raises(
        FloatingPointError, match="longer than the agent's episode buffer"
    ):
        list(run)


@dataclasses.dataclass(frozen=True)
class Faulty(Counter):
    """Some of its copies observe NaN."""

    def initial_state(self, key):
        state, timestep = super().initial_state(key)
        fault = jnp.where(jax.random.uniform(key) < 0.2, jnp.nan, 0.0)
        return state, timestep._replace(observation=timestep.observation + fault)


@pytest.mark.parametrize("max_kl", [math.inf, 0.1])
def test_a_nan_on_one_core_keeps_no_other_waiting(max_kl, monkeypatch):
    monkeypatch.setattr(checks, "check_first_steps", lambda environment: None)
    environment = Faulty()
    agent = ppo.make_agent(
        dataclasses.replace(PPO, max_kl=max_kl),
        networks.actor_critic(
            environment.observation_spec(), environment.action_spec(), NETWORK
        ),
    )
    run = anakin.train(
        agent, environment, batch_size=8, unroll_length=4, total_steps=1_000, cores=8
    )
    with pytest.raises(FloatingPointError, match="observation that is not finite"):
        list(run)


@pytest.mark.core
def test_an_observation_that_is_not_finite_is_named():
    nothing = jnp.float32(jnp.nan)
    observation = {"a": jnp.ones((2, 3)), "b": jnp.full((2, 3), nothing)}
    zeros = jnp.zeros((2, 3))
    given = tally.of_environment(dm_env.TimeStep(zeros, zeros, zeros, observation))
    counted = tally.add(tally.initial_state(given), given, jnp.uint32(7))
    with pytest.raises(FloatingPointError, match="update 7: .* an observation"):
        tally.stop_if_not_finite(counted.failures)
