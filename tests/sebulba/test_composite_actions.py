"""Actions are any pytree, on the host, too."""

import jax
import pytest

import sebulba
from podracer.errors import UserError
from sebulba import evaluation
from sebulba.cores import split
from sebulba.host_environments.remote import serving
from tests.agents import composite, reinforce
from tests.sebulba.host_environments import stepping

ENVIRONMENT = "jax:tests.environments:Composite"


def train(agent, name=ENVIRONMENT):
    return sebulba.train(
        agent,
        lambda number: stepping.make(name, 32),
        unroll_length=5,
        total_steps=160 * 300,
        cores=split(jax.devices()[:2]),
        max_lag=0,
    )


def test_an_agent_with_an_action_of_two_parts_learns():
    agent = composite()
    *_, (state, row) = train(agent)
    assert row["episode_return"] > 0.5 * 5  # at first -0.3 * 5
    params = jax.device_put(agent.actor_params(state.learner), jax.devices()[0])
    environment = stepping.make(ENVIRONMENT)
    played = evaluation.evaluate(agent, params, environment, episodes=4)
    assert (played.episode_return > 0.9 * 5).all()


@pytest.mark.parametrize(
    ("agent", "name"),
    [(reinforce(1, 3), ENVIRONMENT), (composite(), "jax:tests.environments:Bandit")],
    ids=["one instead of two", "two instead of one"],
)
def test_actions_of_another_structure_are_one_line(agent, name):
    with pytest.raises(UserError, match="action .*; correct the agent") as error:
        list(train(agent, name))
    assert "\n" not in str(error.value)


def test_they_are_not_served_to_other_machines():
    with pytest.raises(UserError, match="actions .*only one array can be") as error:
        serving.check(stepping.make(ENVIRONMENT))
    assert "\n" not in str(error.value)
