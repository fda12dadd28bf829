"""An actor whose program steps the environments, too: an unroll is one program.

Without Python between two steps, acting neither waits for the interpreter's lock (GIL)
nor pays for dispatch. For simulators that XLA can call on a CPU, see `Capabilities`.
The parameters are the newest at the start of each unroll.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from podracer import kernels
from sebulba.actor import ActorCore, Fill, FullUnroll, Programs, Unroll, UnrollStart
from sebulba.host_environments.environment import capabilities_of
from sebulba.host_environments.protocol import check_compiled


def can_act(environment: Any, device: jax.Device) -> bool:
    """Whether programs on this core can step the environments."""
    possible = device.platform == "cpu" and capabilities_of(environment).compiled
    return possible and environment.compiled() is not None


def make_fill(environment: Any, core: ActorCore) -> Fill:
    """Fills an unroll at once, and carries the simulators' state from unroll to
    unroll."""
    whole = state = None  # until the environments are reset

    def fill(start: UnrollStart, unroll: Unroll) -> tuple[FullUnroll, np.ndarray]:
        nonlocal whole, state
        if whole is None:
            compiled = environment.compiled()
            actions = unroll.outputs.action
            action = jax.eval_shape(lambda x: jax.tree.map(lambda y: y[0], x), actions)
            name = type(environment).__name__
            check_compiled(name, compiled, start.timestep, action)
            whole = make_unroll(core.programs, compiled.step, core.unroll_length)
            # on the core, as all later ones are: else the program would be compiled twice
            state = jax.device_put(compiled.state, core.device)
        params, version = core.newest()
        full, state, last, recorded = whole(params, start, unroll, state)
        environment.stepped(*jax.tree.map(np.asarray, (last, recorded)))
        core.stepped()
        return full, np.full(core.unroll_length, version)

    return fill


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
