"""An actor whose program steps the environments, too: an unroll is one program.

Without Python between two steps, acting waits for no other thread's hold of the interpreter,
and costs no dispatch. For simulators that XLA can call on a CPU, see `Capabilities`. The
parameters are the newest at the start of each unroll.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from podracer import kernels
from sebulba.actor import Fill, FullUnroll, Newest, Programs, Unroll, UnrollStart
from sebulba.host_environments.environment import Compiled, capabilities_of
from sebulba.host_environments.protocol import check_compiled


def can_act(environment: Any, device: jax.Device) -> bool:
    """Whether programs on this core can step the environments."""
    possible = device.platform == "cpu" and capabilities_of(environment).compiled
    return possible and environment.compiled() is not None


def make_fill(
    environment: Any,
    programs: Programs,
    unroll_length: int,
    newest: Newest,
    stepped: Callable[[], None],
) -> Fill:
    """Fills an unroll at once. The arguments are those of `actor.make_fill`.

    The simulators' state goes from one unroll to the next here.
    """
    whole = state = None  # until the environments are reset

    def fill(start: UnrollStart, unroll: Unroll) -> tuple[FullUnroll, np.ndarray]:
        nonlocal whole, state
        if whole is None:
            compiled = checked(environment, start, unroll)
            whole = make_unroll(programs, compiled.step, unroll_length)
            # committed to the core as all later ones are: else there were two compilations
            state = jax.device_put(compiled.state, start.steps.device)
        params, version = newest()
        full, state, last, recorded = whole(params, start, unroll, state)
        environment.stepped(*jax.tree.map(np.asarray, (last, recorded)))
        stepped()
        return full, np.full(unroll_length, version)

    return fill


def checked(environment: Any, start: UnrollStart, unroll: Unroll) -> Compiled:
    """What `compiled` gives for environments that were reset. Raises UserError."""
    name, compiled = type(environment).__name__, environment.compiled()
    actions = unroll.outputs.action
    action = jax.eval_shape(lambda x: jax.tree.map(lambda y: y[0], x), actions)
    check_compiled(name, compiled, start.timestep, action)
    return compiled


def make_unroll(programs: Programs, simulate: Callable, unroll_length: int) -> Callable:
    """(params, start, unroll, state) -> (FullUnroll, state, last timestep, recorded [T, ...]).

    Args:
      programs: an actor's.
      simulate: `Compiled.step`, which takes `state`.
      unroll_length: T.
    """
    simulate = kernels.without_effect(simulate)

    def whole(params, start, unroll, state):
        keys = programs.keys(start)

        def step(carry, _):
            unroll, state, timestep = carry
            unroll, action = programs.step(params, keys, unroll, timestep)
            state, timestep, recorded = simulate(state, action)
            return (unroll, state, timestep), recorded

        carry = unroll, state, start.timestep
        (unroll, state, last), recorded = jax.lax.scan(
            step, carry, length=unroll_length
        )
        return programs.finish(start, unroll, last), state, last, recorded

    return jax.jit(whole, donate_argnums=(1, 2))
