"""An actor whose program steps the environments, too: an unroll is one program.

Without Python between two steps, acting waits for no other thread's hold of the interpreter,
and costs no dispatch. For simulators that XLA can call on a CPU, see HostEnvironment. The
parameters are the newest at the start of each unroll.
"""

from collections.abc import Callable

import jax
import numpy as np

from sebulba import actor
from sebulba.actor import Before, Unroll
from sebulba.host_environments.environment import HostEnvironment

make_programs = actor.make_programs


def can_act(environment: HostEnvironment, device: jax.Device) -> bool:
    """Whether programs on this core can step the environments."""
    possible = device.platform == "cpu" and _offers(type(environment))
    return possible and environment.compiled() is not None


def _offers(kind: type) -> bool:
    """Whether `compiled` does what `step` does.

    Not where a subclass or a wrapper has another `step`; and only the environment itself
    could give a snapshot.
    """
    bases = (x for x in kind.__mro__ if {"step", "compiled"} & vars(x).keys())
    return "compiled" in vars(next(bases, object)) and not hasattr(kind, "snapshot")


def make_unroll(decide: Callable, simulate: Callable, unroll_length: int) -> Callable:
    """(params, keys, unroll, state, timestep) -> ((unroll, state, timestep), recorded).

    Args:
      decide: `actor.Programs.step`.
      simulate: `Compiled.step`.
      unroll_length: number of steps, all of an unroll.
    """

    def unroll(params, keys, unroll, state, timestep):
        def step(carry, _):
            unroll, state, timestep = carry
            unroll, action = decide(params, keys, unroll, timestep)
            state, timestep, recorded = simulate(state, action)
            return (unroll, state, timestep), recorded

        carry = unroll, state, timestep
        return jax.lax.scan(step, carry, length=unroll_length)

    return jax.jit(unroll, donate_argnums=2)


class Actor(actor.Actor):
    """Acts for a whole unroll at once."""

    def begin(self) -> None:
        super().begin()
        state, simulate = self._environment.compiled()
        self._state = jax.device_put(state, self._device)  # else two compilations
        decide = self._programs.step
        self._unroll = make_unroll(decide, simulate, self._unroll_length)

    def _fill(self, before: Before, unroll: Unroll):
        params, version = self._server.latest(self._device)
        keys = self._programs.keys(before)
        (unroll, self._state, timestep), recorded = self._unroll(
            params, keys, unroll, self._state, before.timestep
        )
        self._environment.stepped(*jax.tree.map(np.asarray, (timestep, recorded)))
        self._queue.stepped()
        return unroll, timestep, np.full(self._unroll_length, version)
