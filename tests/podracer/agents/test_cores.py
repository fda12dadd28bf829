"""N cores compute what one core computes: updates, metrics, and what depends on these."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anakin import training
from envs_jax.environment import restart, transition
from envs_jax.wrappers import batched
from podracer import parallel
from podracer.agents import AGENTS, from_flags
from tests.disco_files import random_rule
from tests.environments import Counter
from tests.rule_files import returns_rule

BATCH_SIZE, UNROLL_LENGTH = 4, 7
SEED = 7  # of two cores, only the first has void transitions


@dataclasses.dataclass(frozen=True)
class Uneven(Counter):
    """Episodes of different lengths, so that cores have unequal numbers of void transitions."""

    shortest: int = 1
    longest: int = 20

    def initial_state(self, key):
        left = jnp.where(jax.random.bernoulli(key), self.shortest, self.longest)
        return left, restart(jnp.ones(1))

    def step(self, key, left, action):
        left = left - 1
        reward = jnp.where(action == 1, left.astype(jnp.float32), 0.5)
        return left, transition(reward, left[None].astype(jnp.float32), left <= 0)


# Each environment ends one episode of another length within an unroll: those of BatchPPO.
ONCE = Uneven(shortest=4, longest=6)
SMALL = {"hidden_sizes": (4,)}
ONE_STEP = {"epochs": 3, "minibatches": 1}
OF_AGENT = {
    "impala": {},
    "ppo": ONE_STEP | {"learning_rate": 0.1},
    "pqn": ONE_STEP | {"learning_rate": 0.1},
    "dqn": {"learning_rate": 0.1, "return_steps": 3},
    "batch_ppo": {"episodes_per_update": BATCH_SIZE, "max_episode_length": 6},
    "muzero": {"num_simulations": 2},
    "lpg": {"update_rule": returns_rule()},
    "disco": {"update_rule": random_rule()},
}
SLOW = ("batch_ppo", "disco", "lpg", "muzero")  # to compile
NOISY = ("sac", "td3")  # learn with noise that each core draws for itself
OF_NETWORK = {
    "lpg": {"prediction_size": 4},
    "disco": {"embedding_size": 4, "model_size": 4, "head_size": 4},
}


def make_agent(name, environment, **config):
    algorithm = from_flags.algorithm_named(name)
    maker, network = from_flags.network_maker(None, algorithm)
    fields = {x.name for x in dataclasses.fields(network)}
    sizes = {x: size for x, size in SMALL.items() if x in fields}
    return from_flags.make_agent(
        from_flags.Parts(
            algorithm,
            dataclasses.replace(algorithm.config, **OF_AGENT[name] | config),
            dataclasses.replace(network, **sizes | OF_NETWORK.get(name, {})),
            environment.observation_spec(),
            environment.action_spec(),
            make_network=maker,
        )
    )


def updated(name, cores, **config):
    """(the learner's shared state, the metrics) of an update on so many cores."""
    environment = ONCE if name == "batch_ppo" else Uneven()
    agent, environment = make_agent(name, environment, **config), batched(environment)
    step = training.make_step(agent, environment, UNROLL_LENGTH)

    def update(key, index):
        state, metrics = step(training.initial_state(key, index, agent, environment))
        return state.learner.shared, parallel.AVERAGE(metrics)

    program = parallel.over_cores(
        update,
        parallel.make_mesh(cores),
        (parallel.SHARED, parallel.BATCH),
        parallel.SHARED,
    )
    return parallel.on_host(program(jax.random.key(SEED), jnp.arange(BATCH_SIZE)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW))
        for x in AGENTS
        if x not in NOISY
    ],
)
def test_an_update_and_its_metrics_are_those_of_one_core(name):
    one, two = (updated(name, cores) for cores in (1, 2))
    assert one[1].get("trained", 1.0) == 1.0
    for _, metrics in (one, two):
        metrics.pop("max_return", None)  # MuZero's is of a core
    for a, b in zip(one, two, strict=True):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=3e-5, atol=1e-5), a, b
        )


def test_epochs_end_where_they_end_on_one_core():
    kl = updated("ppo", 1, epochs=2)[1]["kl"]
    for limit, epochs in ((0.999 * kl, 2), (1.001 * kl, 3)):
        assert updated("ppo", 2, max_kl=float(limit))[1]["epochs"] == epochs
