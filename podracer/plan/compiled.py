"""Programs compiled but not run: whether they fit into memory, and what they do.

For the compilers of TPUs and GPUs see tpu.py and gpu.py; a CPU's gives the same with fewer details.
"""

import math
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from podracer import kernels, parallel
from podracer.errors import UserError
from podracer.plan import hlo

Built = TypeVar("Built")
TRIES = 4  # compilations to find what fits
MARGIN = 0.75  # of the memory: programs that nearly fill it take minutes to compile
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
TOO_LARGE = re.compile(  # the TPU compiler's error: needed and available bytes
    r"RESOURCE_EXHAUSTED: .*?(?:\(|Used )([\d.]+)([KMGT]?)\)? "
    r"(?:exceeds available HBM \(|of )([\d.]+)([KMGT]?)"
)


class DoesNotFit(Exception):
    """A program needs more memory than a core has; both in bytes."""

    def __init__(self, name: str, needed: int, available: int):
        super().__init__(
            f"{name} needs {size(needed)} on a core that has {size(available)}"
        )
        self.needed, self.available = needed, available


class Refused(UserError):
    """The compiler rejects a program."""


class Memory(NamedTuple):
    """Bytes of a core's memory while a program runs."""

    peak: int  # the most in use at any time
    arguments: int
    results: int  # without those that reuse an argument's memory
    code: int


class Program(NamedTuple):
    """A compiled program."""

    name: str
    compiled: Any  # jax.stages.Compiled
    seconds: float  # of compilation
    module: hlo.Module

    @property
    def results(self) -> Any:
        """Shapes and shardings of what it returns."""
        return jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
            self.compiled.out_info,
            self.compiled.output_shardings,
        )

    @property
    def memory(self) -> Memory:
        sizes = self.compiled.memory_analysis()
        return Memory(
            sizes.peak_memory_in_bytes,
            sizes.argument_size_in_bytes,
            sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
            sizes.generated_code_size_in_bytes,
        )

    @property
    def not_donated(self) -> list[str]:
        """The parameters whose memory no result reuses."""
        return [
            x.arrays[0].text
            for i, x in enumerate(self.module.parameters)
            if i not in self.module.donated
        ]

    @property
    def flops(self) -> int:
        """Floating-point operations of matrix products and convolutions: per update and core."""
        return _in_update(self.module.steps, self.module.flops)

    @property
    def traffic(self) -> int:
        """Bytes that kernels move from and to a core's memory per update."""
        return _in_update(self.module.kernels, self.module.traffic)

    @property
    def cycles(self) -> int:
        """Cycles of a core per update, as the compiler estimates its kernels."""
        pattern = r'"estimated_cycles":"(\d+)"'
        return _in_update(
            self.module.kernels, lambda s: int(s.instruction.attribute(pattern, "0"))
        )


def _in_update(steps: list[hlo.Step], count: Callable[[hlo.Step], int]) -> int:
    """The sum over the steps of an update, each as often as it runs."""
    return sum(s.times * count(s) for s in steps if s.inside)


def compile(name: str, program: Any, *shapes: Any) -> Program:
    """Compiles a jitted function for arguments of these shapes.

    Raises:
      DoesNotFit: a core has too little memory.
      Refused: the compiler rejects it for another reason.
    """
    with kernels.for_all_platforms():
        lowered = program.lower(*shapes)
    started = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if refusal := TOO_LARGE.search(str(error)):
            needed, unit, has, its_unit = refusal.groups()
            sizes = float(needed) * UNITS[unit], float(has) * UNITS[its_unit]
            raise DoesNotFit(name, *map(int, sizes)) from error
        line = str(error).partition("\n")[0]
        raise Refused(f"{name}: the compiler rejects it: {line}") from error
    seconds = time.perf_counter() - started
    return Program(name, compiled, seconds, hlo.Module(compiled.as_text()))


def available(core: jax.Device) -> int:
    """Bytes of a core's memory that a program may use, from the compiler's own error."""
    too_much = parallel.over_cores(
        lambda: jnp.zeros(2**40, jnp.float32),
        parallel.mesh_of([core]),
        inputs=(),
        outputs=parallel.SHARED,
    )
    try:
        compile("", too_much)
    except DoesNotFit as error:
        return error.available
    raise UserError(
        f"the compiler does not say how much memory a {core.device_kind} has"
    )


def placed(shapes: Any, layout: Any, cores: list[jax.Device]) -> Any:
    """Shapes of one core's share, with their shardings over all of these cores."""

    def anything(x):
        key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key(0) if key else jnp.zeros(x.shape, x.dtype)

    program = parallel.over_cores(
        lambda: jax.tree.map(anything, shapes),
        parallel.mesh_of(cores),
        inputs=(),
        outputs=layout,
    )
    return compile("", program).results


def fitting(build: Callable[[int], Built], batch_size: int, unit: int) -> Built:
    """`build(batch_size)`, for a multiple of `unit`.

    Raises UserError where that does not fit; names a batch that does, by compiling.
    """
    try:
        return build(batch_size)
    except DoesNotFit as error:
        wrong = error
    line, smaller = f"batch_size is {batch_size}, and {wrong}", batch_size
    for _ in range(TRIES):
        share = MARGIN * wrong.available / wrong.needed
        smaller = rounded(int(smaller * share) // unit) * unit
        if not smaller:
            break
        try:
            build(smaller)
        except DoesNotFit as error:
            wrong = error
        else:
            raise UserError(f"{line}: choose batch_size {smaller}, which fits")
    raise UserError(
        f"{line}; no batch fits: choose a shorter unroll_length, a smaller network or "
        "more cores"
    )


def rounded(number: int) -> int:
    """Down to two binary digits."""
    shift = max(0, number.bit_length() - 2)
    return number >> shift << shift


def size(count: float) -> str:
    """Bytes in a readable unit."""
    unit = min(4, int(math.log2(max(1, count)) / 10))
    number = count / 2 ** (10 * unit)
    digits = f"{number:.3g}" if number < 1_000 else f"{number:.0f}"
    return f"{digits} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}"
