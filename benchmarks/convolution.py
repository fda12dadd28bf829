"""The torsos' speed with podracer's convolutions beside XLA's own, in one run.

    python -m benchmarks.convolution [--torsos minatar shallow resnet] [--seconds 1]

Thousands of samples/s on one core: forward, gradient, and gradient in a loop, as in Anakin
and in a learner with several updates. On a CPU, XLA has no fast kernel for the gradient in
a loop; on a TPU or GPU the two are the same program.
"""

import dataclasses
import time
from collections.abc import Callable
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import rich
import rich.table
import tyro

from podracer import parallel
from podracer.networks import convolution, torsos

UPDATES = 2  # in a loop
MINATAR = torsos.CONVOLUTIONS["minatar"]()
TORSOS = {
    "minatar": (MINATAR, (2_048, 10, 10, 4), jnp.bool),
    "minatar, 10 channels": (MINATAR, (2_048, 10, 10, 10), jnp.bool),
    "shallow": (torsos.CONVOLUTIONS["shallow"](), (64, 84, 84, 4), jnp.uint8),
    "resnet": (torsos.ResNet(), (16, 84, 84, 4), jnp.uint8),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    torsos: tuple[str, ...] = tuple(TORSOS)
    seconds: float = 1.0
    """of each measurement, after compilation"""


def programs(torso: nn.Module, params, image) -> dict[str, Callable]:
    """Compiled functions of the parameters, by name."""

    def forward(params):
        return torso.apply(params, image)

    def gradient(params):
        return jax.grad(lambda params: jnp.square(forward(params)).mean())(params)

    def loop(params):
        def update(_, params):
            return jax.tree.map(lambda p, g: p - 1e-6 * g, params, gradient(params))

        return jax.lax.fori_loop(0, UPDATES, update, params)

    functions = {"forward": forward, "gradient": gradient, "gradient in a loop": loop}
    return {
        name: jax.jit(function).lower(params).compile()
        for name, function in functions.items()
    }


def native_convolve(image, kernel, strides, pads) -> jax.Array:
    return convolution._convolve(strides, pads, image, kernel)


def fastest(call: Callable, params, seconds: float) -> float:
    """The least seconds of a call, which other processes disturb least."""
    jax.block_until_ready(call(params))
    best, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        started = time.perf_counter()
        jax.block_until_ready(call(params))
        best = min(best, time.perf_counter() - started)
    return best


def main(config: Config) -> None:
    """Prints the table."""
    parallel.use_cpu_cores(1)  # with the flags that training has
    table = rich.table.Table("torso", "batch", "", "XLA", "podracer", "ratio")
    for name in config.torsos:
        torso, shape, dtype = TORSOS[name]
        image = jax.random.bits(jax.random.key(0), shape, jnp.uint8).astype(dtype)
        params = torso.init(jax.random.key(1), image)
        ours = programs(torso, params, image)
        with (
            mock.patch.object(convolution, "convolve", native_convolve),
            mock.patch.object(torsos, "max_pool", convolution._max_pool),
        ):
            native = programs(torso, params, image)
        for what in ours:
            samples = shape[0] * (UPDATES if "loop" in what else 1)
            speeds = [
                samples / fastest(kind[what], params, config.seconds) / 1e3
                for kind in (native, ours)
            ]
            cells = *(f"{x:.3g}k" for x in speeds), f"{speeds[1] / speeds[0]:.2f}"
            table.add_row(name, str(shape[0]), what, *cells)
    rich.print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}", table)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
