"""An agent whose functions are compiled: called as they are, each of their operations
would be a compilation of its own."""

import jax


def jitted(agent):
    """The same agent; `initial_actor_state` takes a number, not an array, and stays."""
    names = ("initial_learner_state", "learner_step", "actor_step", "greedy_actor_step")
    return agent._replace(**{name: jax.jit(getattr(agent, name)) for name in names})
