"""An actor whose program steps the environments, too: an unroll is one program.

Without Python between two steps, acting waits for no other thread's hold of the interpreter,
and costs no dispatch. For simulators that XLA can call on a CPU, see HostEnvironment. The
parameters are the newest at the start of each unroll.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import mlir

from podracer.agent import Trajectory
from podracer.metrics import episodes
from sebulba import actor
from sebulba.actor import Programs
from sebulba.host_environments.environment import HostEnvironment
from sebulba.host_environments.protocol import check_compiled

make_programs = actor.make_programs
EFFECT = {"FFI"}  # that of `jax.ffi.ffi_call`, as JAX prints it
_simulation = core.Primitive("simulation")
_simulation.multiple_results = True
_simulation.def_abstract_eval(lambda *_, step: step.out_avals)


@_simulation.def_impl
def _simulate(*arrays: Any, step: core.ClosedJaxpr) -> Any:
    return core.jaxpr_as_fun(step)(*arrays)


mlir.register_lowering(_simulation, mlir.lower_fun(_simulate, multiple_results=True))


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


def make_unroll(programs: Programs, simulate: Callable, unroll_length: int) -> Callable:
    """(params, before, unroll, state) -> (what `Programs.finish` gives, state, heard).

    `heard` is what the environment hears by `stepped`.

    Args:
      programs: an actor's.
      simulate: `Compiled.step`.
      unroll_length: number of steps.
    """
    simulate = unmarked(simulate)

    def whole(params, before, unroll, state):
        keys = programs.keys(before)

        def step(carry, _):
            unroll, state, timestep = carry
            unroll, action = programs.step(params, keys, unroll, timestep)
            state, timestep, recorded = simulate(state, action)
            return (unroll, state, timestep), recorded

        carry = unroll, state, before.timestep
        (unroll, state, timestep), recorded = jax.lax.scan(
            step, carry, length=unroll_length
        )
        finished = programs.finish(before, unroll, timestep)
        return finished, state, (timestep, recorded)

    return jax.jit(whole, donate_argnums=(1, 2))


def unmarked(simulate: Callable) -> Callable:
    """`simulate`, without the effect by which JAX marks the program that calls it.

    JAX starts a marked program from Python, which takes 1.5 ms and the interpreter. The call
    itself keeps its mark, so XLA leaves none out; and the state that each step takes from the
    last one keeps their order.
    """

    def call(*arguments: Any) -> Any:
        step, shapes = jax.make_jaxpr(simulate, return_shape=True)(*arguments)
        if {str(effect) for effect in step.effects} - EFFECT:
            return simulate(*arguments)  # others do more than to mark
        leaves = _simulation.bind(*jax.tree.leaves(arguments), step=step)
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return call


class Actor(actor.Actor):
    """Acts for a whole unroll at once."""

    def begin(self) -> None:
        super().begin()
        before, unroll = self._now
        name, compiled = type(self._environment).__name__, self._environment.compiled()
        actions = unroll.outputs.action
        action = jax.eval_shape(lambda x: jax.tree.map(lambda y: y[0], x), actions)
        check_compiled(name, compiled, before.timestep, action)
        state, simulate = compiled
        self._state = jax.device_put(state, self._device)  # else two compilations
        self._unroll = make_unroll(self._programs, simulate, self._unroll_length)

    def _trajectory(self) -> tuple[list[Trajectory], episodes.Sums, np.ndarray]:
        params, version = self._server.latest(self._device)
        finished, self._state, heard = self._unroll(params, *self._now, self._state)
        self._environment.stepped(*jax.tree.map(np.asarray, heard))
        self._queue.stepped()
        self._now, parts, sums = finished
        return parts, sums, np.full(self._unroll_length, version)
