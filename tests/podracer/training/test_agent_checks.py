"""What an agent's functions return is checked at the start, in both architectures."""

import re

import jax.numpy as jnp
import pytest

import anakin
from envs_jax.catch import Catch
from podracer.agent import ActorOutput
from podracer.errors import UserError
from tests.sebulba.test_training import train, watcher

SECOND = "actor_step gave {} as its second result; it must return (actor_state, ActorO"


def idle_step(keys, params, actor_state, timestep):
    action = jnp.zeros(timestep.reward.shape, jnp.int32)
    return actor_state, ActorOutput(action, ())


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
    def actor_step(*inputs):
        actor_state, output = idle_step(*inputs)
        return actor_state, change(output)

    refuse(watcher()._replace(actor_step=actor_step), architecture, line)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda state, _: state, "learner_step gave LearnerState; it must return (Lea"),
        (lambda state, _: (state, ()), "learner_step gave (LearnerState, tuple); it"),
        (
            lambda state, m: (tuple(state), m),
            "learner_step gave (tuple, dict); it must",
        ),
        (
            lambda state, m: (state._replace(local={"x": jnp.ones(3)}), m),
            "learner_step: the learner state.local['x'] is missing before a step and fl",
        ),
        (
            lambda state, m: (state, m | {"loss/x": jnp.ones(3)}),
            "learner_step: the metric 'loss/x' has shape (3,); it must be a scalar, such",
        ),
    ],
)
@pytest.mark.parametrize("architecture", ["anakin", "sebulba"])
def test_what_is_no_update_is_one_line(architecture, change, line):
    def learner_step(key, learner_state, trajectory):
        return change(learner_state, {"loss/total": jnp.float32(0)})

    agent = watcher()._replace(actor_step=idle_step, learner_step=learner_step)
    refuse(agent, architecture, line)


def refuse(agent, architecture, line):
    """Asserts that a run with this agent ends at once, with this line."""
    with pytest.raises(UserError, match=f"^{re.escape(line)}") as error:
        if architecture == "anakin":
            anakin.train(
                agent, Catch(), batch_size=4, unroll_length=2, total_steps=16, cores=1
            )
        else:
            [*train(agent, devices=2)]
    assert "\n" not in str(error.value)
