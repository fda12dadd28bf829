"""Foreign calls (`jax.ffi`) in a program that JAX starts as quickly as any other.

JAX marks a program that calls foreign code with an effect, and starts a marked program
from Python, which takes 1.5 ms and the interpreter's lock.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import mlir

from podracer.kernels.switch import is_on

EFFECT = {"FFI"}  # that of `jax.ffi.ffi_call`, as JAX prints it
_foreign = core.Primitive("foreign")
_foreign.multiple_results = True
_foreign.def_abstract_eval(lambda *_, program: program.out_avals)


@_foreign.def_impl
def _run(*arrays: Any, program: core.ClosedJaxpr) -> Any:
    return core.jaxpr_as_fun(program)(*arrays)


mlir.register_lowering(_foreign, mlir.lower_fun(_run, multiple_results=True))


def without_effect(function: Callable) -> Callable:
    """`function`, whose foreign calls do not mark the program that calls it.

    For calls that take what the last one returned, which keeps their order. Each call keeps
    its own mark, so XLA leaves none out.
    """

    def call(*arguments: Any) -> Any:
        if not is_on("foreign"):
            return function(*arguments)
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if {str(effect) for effect in program.effects} - EFFECT:
            return function(*arguments)  # others do more than to mark
        leaves = _foreign.bind(*jax.tree.leaves(arguments), program=program)
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return call
