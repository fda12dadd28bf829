"""The loop of Anakin's acting: what it stores, how many steps an iteration takes."""

import jax
import jax.numpy as jnp
import pytest

from anakin import acting, training
from envs_jax.catch import Catch
from envs_jax.wrappers import Batched, auto_reset
from tests.anakin.test_training import Image, make_agent


def loops(environment, unroll_length, platform="cpu"):
    """The scans over `unroll_length` steps in the program of an update."""
    agent, environment = make_agent(environment), Batched(auto_reset(environment))
    state = training.initial_state(jax.random.key(0), jnp.arange(2), agent, environment)
    step = training.make_step(agent, environment, unroll_length, platform)
    return [
        equation
        for equation in jax.make_jaxpr(step)(state).eqns
        if equation.primitive.name == "scan"
        and equation.params["length"] == unroll_length
    ]


def test_images_are_stored_flat():
    """A TPU pads the last two axes of what is stored."""
    stacked = [x.aval.shape for loop in loops(Image(), 7) for x in loop.outvars]
    assert (7, 2, 50) in stacked and (7, 2, 10, 5, 1) not in stacked


@pytest.mark.parametrize(
    ("platform", "large", "together"),
    [("cpu", 3000, 1), ("gpu", 3000, 4), ("tpu", 3000, 4), ("tpu", 100, 1)],
)
def test_an_accelerator_takes_several_small_steps_in_an_iteration(
    platform, large, together, monkeypatch
):
    monkeypatch.setattr(acting, "LARGE", large)
    (loop,) = loops(Catch(), 9, platform)
    assert loop.params["unroll"] == together


def test_operations_are_counted_as_often_as_they_run():
    def program(x):
        x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=100)
        x = jax.lax.while_loop(lambda x: x > 0.0, lambda x: x - 1.0, x)
        return jax.lax.cond(x > 0.0, jnp.cos, lambda x: x * 2.0 + 1.0, x)

    branches = 1 + 2
    expected = (1 + 100) + (1 + 2) + (2 + 1 + branches)  # 2: the condition as a number
    program = jax.make_jaxpr(program)(1.0).jaxpr
    assert acting.operations(program) == expected, program
