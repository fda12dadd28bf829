"""What an agent's actors give is checked at the start, in both architectures."""

import re

import jax.numpy as jnp
import pytest

import anakin
from envs_jax.catch import Catch
from podracer.agent import ActorOutput
from podracer.errors import UserError
from tests.sebulba.test_training import train, watcher

SECOND = "actor_step gave {} as its second result; it must return (actor_state, ActorO"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda output: output.action, SECOND.format("an array")),
        (tuple, SECOND.format("tuple")),
        (
            lambda output: output._replace(extras={"p": jnp.ones(3)}),
            "actor_step: extras['p'] has shape (3,); it must have 4 rows, one for each",
        ),
    ],
)
@pytest.mark.parametrize("architecture", ["anakin", "sebulba"])
def test_what_is_no_actor_output_is_one_line(architecture, change, line):
    def actor_step(keys, params, actor_state, timestep):
        action = jnp.zeros(timestep.reward.shape, jnp.int32)
        return actor_state, change(ActorOutput(action, ()))

    agent = watcher()._replace(actor_step=actor_step)
    with pytest.raises(UserError, match=f"^{re.escape(line)}") as error:
        if architecture == "anakin":
            anakin.train(
                agent, Catch(), batch_size=4, unroll_length=2, total_steps=16, cores=1
            )
        else:
            [*train(agent, devices=2)]
    assert "\n" not in str(error.value)
