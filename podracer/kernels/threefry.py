"""JAX's random numbers on a CPU: the same bits in less time.

JAX compiles their hash for a CPU as a loop, whose five iterations are a dozen small kernels
each. Here it is straight-line code, 1.5 to 3 times as fast.
"""

import functools

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

from podracer.kernels.switch import is_on

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA
BITS = 32


def threefry(key1, key2, x1, x2) -> tuple[jax.Array, jax.Array]:
    """Threefry 2x32 of 20 rounds (Salmon et al. 2011): two uint32 arrays of one shape.

    Args: key and counter, uint32 arrays that broadcast to that shape.
    """
    keys = key1, key2, key1 ^ key2 ^ PARITY
    x1, x2 = x1 + keys[0], x2 + keys[1]
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            x1 = x1 + x2
            x2 = (x2 << rotation | x2 >> BITS - rotation) ^ x1
        x1 = x1 + keys[(i + 1) % 3]
        x2 = x2 + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x1, x2


def _nothing(key1, key2, x1, x2) -> tuple[jax.Array, jax.Array]:
    """Zeros of the type that `threefry` gives: its shape, sharding and varying axes."""
    zeros = (key1 ^ key2 ^ x1 ^ x2) & jnp.uint32(0)
    return zeros, zeros


def _apart(*arguments):
    """`threefry` in a branch that is always taken, which XLA cannot know.

    XLA would otherwise fuse it into all that reads the numbers, and compute it in each.
    """
    if not is_on("threefry"):
        return threefry(*arguments)
    taken = jax.lax.optimization_barrier(True)
    return jax.lax.cond(taken, threefry, _nothing, *arguments)


@functools.cache  # once in a process
def register() -> None:
    """Makes this the hash of all programs that the process compiles for CPUs from now on.

    JAX has no way back to its own loop. Where the kernel is turned off later, the hash is
    straight-line code that XLA fuses as it likes; the bits are the same in any case.
    """
    lowering = mlir.lower_fun(_apart, multiple_results=True)
    mlir.register_lowering(threefry2x32_p, lowering, platform="cpu")
