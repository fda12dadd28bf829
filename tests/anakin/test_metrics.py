"""Every agent reports in the words of `podracer.metrics`, and in no others."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from anakin import training
from envs_jax import Batched, Catch, Pendulum, auto_reset
from podracer import parallel
from podracer.agents import AGENTS, algorithm, from_flags
from podracer.metrics import VOCABULARY
from podracer.transformations import Interface
from tests.disco_files import random_rule
from tests.rule_files import returns_rule

CHANGES = {  # fields without a usable default
    "lpg": {"update_rule": returns_rule()},
    "disco": {"update_rule": random_rule()},
}
NETWORKS = {"lpg": {"prediction_size": 4}}
DISCRETE = ("pqn", "dqn", "lpg", "disco", "muzero")

CONTINUOUS = ("sac", "td3")
CASES = {(name, "catch"): Catch() for name in AGENTS if name not in CONTINUOUS}
CASES |= {(name, "pendulum"): Pendulum() for name in AGENTS if name not in DISCRETE}


@pytest.mark.parametrize("name, environment", CASES)
def test_every_metric_of_an_agent_is_in_the_vocabulary(name, environment):
    environment = CASES[name, environment]
    chosen = algorithm.of(AGENTS[name])
    network = from_flags.network_maker(None, chosen)[1]
    config = dataclasses.replace(chosen.config, **CHANGES.get(name, {}))
    agent = from_flags.make_agent(
        from_flags.Parts(
            chosen,
            from_flags.for_run(config, 1000),
            dataclasses.replace(network, **NETWORKS.get(name, {})),
            environment.observation_spec(),
            environment.action_spec(),
            Interface(normalize_observations=True, normalize_rewards=True),
        )
    )
    environment = Batched(auto_reset(environment))
    unit = jax.jit(training.make_step(agent, environment, 4))  # traced once
    assert reported(unit, agent, environment) <= {*VOCABULARY, *chosen.metrics}


def reported(unit, agent, environment) -> set[str]:
    """The names of the metrics that a call of the unit gives; nothing is compiled."""

    def call(key, index):
        state = training.initial_state(key, index, agent, environment)
        state = training.with_tally(state, unit)
        return training.make_call(unit)(state, jnp.uint32(1), jnp.bool_(True))[1]

    program = parallel.over_cores(
        call,
        parallel.make_mesh(1),
        inputs=(parallel.SHARED, parallel.BATCH),
        outputs=parallel.SHARED,
    )
    return {*jax.eval_shape(program, jax.random.key(0), jnp.arange(4))}
