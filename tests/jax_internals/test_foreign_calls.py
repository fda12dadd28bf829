"""A program that calls a simulator: how often it is compiled, what JAX thinks of it."""

import jax
import numpy as np
import pytest

from podracer import kernels
from sebulba import compiled_actor
from tests.sebulba.host_environments.stepping import make
from tests.sebulba.test_compiled_actor import Doubling, unrolls


@pytest.fixture
def logged(caplog):
    """JAX's log of what it compiles, in any thread."""
    jax.config.update("jax_log_compiles", True)
    yield caplog
    jax.config.update("jax_log_compiles", False)


def test_an_unroll_is_compiled_once(logged):
    unrolls(Doubling(), 5, 3)
    compiled = [x for x in logged.messages if "XLA compilation of jit(whole)" in x]
    assert len(compiled) == 1


def test_a_program_that_calls_envpool_is_started_without_python():
    """JAX does that only for programs without effects; XLA still sees that of each call."""
    environment = make("CartPole-v1")
    if not compiled_actor.can_act(environment, jax.devices()[0]):
        pytest.skip("this jaxlib cannot call EnvPool")
    environment.reset()
    state, simulate = environment.compiled()
    action = np.zeros(environment.batch_size, np.int32)
    assert jax.make_jaxpr(simulate)(state, action).effects
    traced = jax.jit(kernels.without_effect(simulate)).trace(state, action)
    assert not traced.jaxpr.effects
    text = traced.lower().as_text()
    assert text.count("has_side_effect = true") == 2  # send, receive
    with kernels.without("foreign"):
        plain = jax.jit(kernels.without_effect(simulate)).trace(state, action)
        assert plain.jaxpr.effects
    environment.close()
