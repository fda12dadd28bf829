"""Whether an agent's actions depend on rewards, found in its program."""

from collections.abc import Callable
from typing import Any

import dm_env
import jax
from jax.interpreters import partial_eval


def are_used(
    actor_step: Callable, params: Any, actor_state: Any, timestep: dm_env.TimeStep
) -> bool:
    """Whether rewards change an action, now or later through the actor state.

    JAX's own dead-code elimination says which inputs an output needs.
    """
    keys = jax.random.split(jax.random.key(0), len(timestep.reward))
    jaxpr, (state, output) = jax.make_jaxpr(actor_step, return_shape=True)(
        keys, params, actor_state, timestep
    )
    states = len(jax.tree.leaves(state))
    actions = len(jax.tree.leaves(output.action))
    outputs = [i < states + actions for i in range(len(jaxpr.out_avals))]
    outputs[:states] = [False] * states  # until an action is found to depend on it
    before = len(jax.tree.leaves((keys, params)))
    rewarded = before + states + 1  # after step_type
    while True:
        _, inputs = partial_eval.dce_jaxpr(jaxpr.jaxpr, outputs)
        if inputs[rewarded]:
            return True
        needed = inputs[before : before + states]
        if needed == outputs[:states]:
            return False
        outputs[:states] = [a or b for a, b in zip(needed, outputs[:states])]
