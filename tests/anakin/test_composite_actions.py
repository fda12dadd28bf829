"""Actions are any pytree that the environment and the agent agree on."""

import types

import jax
import pytest

import anakin
import envs_jax
from podracer import networks, transformations
from podracer.agents import AGENTS, algorithm, batch_ppo, from_flags, impala, ppo
from podracer.errors import UserError
from tests.agents import composite, reinforce
from tests.environments import Bandit, Composite

SIZES = {"batch_size": 32, "unroll_length": 5, "total_steps": 160 * 300}


def test_an_agent_with_an_action_of_two_parts_learns():
    environment, agent = Composite(), composite()
    envs_jax.check(environment, deterministic=True)
    *_, (state, row) = anakin.train(agent, environment, cores=2, **SIZES)
    assert row["episode_return"] > 0.5 * 5  # at first -0.3 * 5
    params = agent.actor_params(state.learner)
    played = anakin.evaluate(agent, params, environment, episodes=4)
    assert (played.episode_return > 0.9 * 5).all()


@pytest.mark.parametrize(
    ("agent", "environment"),
    [(reinforce(1, 3), Composite()), (composite(), Bandit())],
    ids=["one instead of two", "two instead of one"],
)
def test_actions_of_another_structure_are_one_line(agent, environment):
    with pytest.raises(UserError, match="an action is a .* action_spec says") as error:
        next(anakin.train(agent, environment, cores=1, **SIZES))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["disco", "dqn", "lpg", "muzero", "pqn"])
def test_agents_of_discrete_actions_refuse_them_in_one_line(name):
    environment = Composite()
    with pytest.raises(UserError, match="^action_spec is .*a policy is for") as error:
        AGENTS[name].make_network(
            environment.observation_spec(), environment.action_spec()
        )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "ppo",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("impala", "batch_ppo")),
    ],
)
def test_our_other_agents_learn_them(name):
    environment, module = Composite(), AGENTS[name]
    config = {
        "impala": impala.Config(learning_rate=0.01, reward_clipping="none"),
        "ppo": ppo.Config(learning_rate=0.01),
        "batch_ppo": batch_ppo.Config(
            episodes_per_update=32, max_episode_length=5, learning_rate=0.01
        ),
    }[name]
    parts = from_flags.Parts(
        algorithm.of(module),
        config,
        networks.Config(hidden_sizes=(16,)),
        environment.observation_spec(),
        environment.action_spec(),
    )
    agent = from_flags.make_agent(parts)
    sizes = SIZES | {"total_steps": 160 * 100}
    *_, (_, row) = anakin.train(agent, environment, cores=2, **sizes)
    assert row["episode_return"] > 0.5 * 5  # at first -0.3 * 5


def test_the_last_action_is_seen_whole():
    inner, seen = composite(), []

    def actor_step(keys, params, actor_state, timestep):
        seen.append(jax.tree.map(lambda x: x.shape, timestep.observation[1]))
        return inner.actor_step(keys, params, actor_state, timestep)

    agent = transformations.observe_last_action(
        inner._replace(actor_step=actor_step), Composite().action_spec()
    )
    next(anakin.train(agent, Composite(), cores=1, **SIZES))
    assert seen and all(x == {"choice": (32,), "amount": (32, 2)} for x in seen)


def test_a_module_of_ones_own_sees_them_whole():
    """From flags; of what is not a number alone, nothing is scaled or clipped."""
    specs = []
    module = types.ModuleType("mine")
    module.Config = impala.Config
    module.make_network = lambda *pair: specs.append(pair)
    module.make_agent = lambda config, network: composite()
    environment = Composite()
    pair = environment.observation_spec(), environment.action_spec()
    parts = from_flags.Parts(algorithm.of(module), impala.Config(), None, *pair)
    agent = from_flags.make_agent(parts)
    assert specs[0][1] == environment.action_spec()
    next(anakin.train(agent, environment, cores=1, **SIZES))
