"""Agents and networks whose functions are compiled: called as they are, each of their
operations would be a compilation of its own."""

import contextlib
import functools

import jax
import numpy as np
import pytest


def jitted(agent):
    """The same agent; `initial_actor_state` takes a number, not an array, and stays."""
    names = ("initial_learner_state", "learner_step", "actor_step", "greedy_actor_step")
    return agent._replace(**{name: jax.jit(getattr(agent, name)) for name in names})


def jitted_network(network):
    """The same network, but for `init`: see `drawn`."""
    step, unroll = jax.jit(network.step), jax.jit(network.unroll)
    return network._replace(step=step, unroll=unroll)


def drawn(init, *args):
    """Parameters like those of `init(key, *args)`, drawn by numpy.

    For tests of what a network computes: a program that draws initial parameters takes
    longer to compile than one that uses them.
    """
    random = np.random.default_rng(0)

    def draw(leaf):
        # Matrices as PyTorch's, by the number of their inputs; biases are small.
        scale = (3 * np.prod(leaf.shape[:-1])) ** -0.5 if leaf.ndim > 1 else 0.1
        return np.float32(random.normal(scale=scale, size=leaf.shape))

    return jax.tree.map(draw, jax.eval_shape(init, jax.random.key(0), *args))


def with_drawn(network):
    """The same network, whose initial parameters are `drawn`, whatever the key."""
    return network._replace(init=lambda key: drawn(network.init))


@contextlib.contextmanager
def compiled_once(*modules):
    """Runs of one agent, the same object, share the programs that these modules make."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            make_programs = functools.cache(module.make_programs)
            patch.setattr(module, "make_programs", make_programs)
        yield
