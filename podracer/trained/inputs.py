"""The inputs that an agent's actions depend on, read off its program."""

from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from podracer import starts


def used(
    actor_step: Callable, params: Any, actor_state: Any, timestep: dm_env.TimeStep
) -> dm_env.TimeStep:
    """Which leaves of timesteps change an action, now or later through the actor state.

    Returns a timestep of bool. JAX's own dead-code elimination says which inputs an output
    needs.
    """
    keys = jax.random.split(jax.random.key(0), len(timestep.reward))
    jaxpr, (state, output) = jax.make_jaxpr(actor_step, return_shape=True)(
        keys, params, actor_state, timestep
    )
    before = len(jax.tree.leaves((keys, params)))
    states = len(jax.tree.leaves(state))
    actions = len(jax.tree.leaves(output.action))
    inputs = needed(jaxpr.jaxpr, before, states, actions)
    return jax.tree.unflatten(jax.tree.structure(timestep), inputs[before + states :])


def needed(jaxpr: core.Jaxpr, before: int, states: int, actions: int) -> list[bool]:
    """Which inputs of a program change an action, now or later through the state.

    Args:
      jaxpr: its inputs are `before` others, the state and more; its outputs the state, the
        action and more.
      before: number of inputs in front of the state.
      states: number of the state's leaves.
      actions: number of the action's leaves.
    """
    outputs = [states <= i < states + actions for i in range(len(jaxpr.outvars))]
    while True:
        _, inputs = partial_eval.dce_jaxpr(jaxpr, outputs)
        of_state = inputs[before : before + states]
        if of_state == outputs[:states]:
            return inputs
        outputs[:states] = [a or b for a, b in zip(of_state, outputs[:states])]


def filled(spec: Any, used: Any, observation: Any, batch: tuple[int, ...]) -> Any:
    """The observation with zeros for the entries that it lacks and no action depends on.

    Args:
      spec: of the observation.
      used: bool for each leaf of the spec.
      observation: a mapping where the spec is one, or a NamedTuple.
      batch: the leading axes of its arrays.
    """
    if hasattr(spec, "_fields"):
        spec, used = spec._asdict(), used._asdict()
    if not isinstance(spec, dict) or not isinstance(observation, Mapping):
        return observation
    missing = {
        name: jax.tree.map(
            lambda x: starts.own(x, np.zeros((*batch, *x.shape), x.dtype)), part
        )
        for name, part in spec.items()
        if name not in observation and not any(jax.tree.leaves(used[name]))
    }
    present = {
        name: filled(spec[name], used[name], x, batch) if name in spec else x
        for name, x in observation.items()
    }
    return missing | present
