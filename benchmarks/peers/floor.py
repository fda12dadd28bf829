"""What XLA reaches on this machine of the arithmetic that PPO cannot do without.

    JAX_NUM_CPU_DEVICES=2 python floor.py [SECONDS [ROWS...]]

Plain JAX, nothing of podracer's. FLOP/s of the product of [rows, 64] and [64, 64] and of
the two products of its gradient, and tanh/s, of all devices together, in loops whose data
stay in cache. As one line of JSON, by rows and by what is computed, with the steps/s that
the best of them allow PPO on CartPole.
"""

import json
import math
import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

ROWS = (128, 256, 512, 1_024, 2_048)
UNITS = 64
Layers = tuple[tuple[tuple[int, int], ...], ...]
CARTPOLE = ((4, 64), (64, 64), (64, 2)), ((4, 64), (64, 64), (64, 1))  # actor, critic
EPOCHS = 4


def forward(x, g, w):
    """y = x w, which is the next x."""
    return x @ w, g, w


def input_gradient(x, g, w):
    """dx = g w', which is the next g."""
    return x, jax.lax.dot_general(g, w, (((1,), (1,)), ((), ()))), w


def weight_gradient(x, g, w):
    """dw = x' g; one of its rows goes into the next g, or a loop would do this once."""
    w = jax.lax.dot_general(x, g, (((0,), (0,)), ((), ())))
    return x, g.at[0].set(w[0]), w


def weight_gradient_transposed(x, g, w):
    """The same of x' written out first: another kernel of XLA's, mostly a faster one."""
    w = jax.lax.optimization_barrier(x.T) @ g
    return x, g.at[0].set(w[0]), w


def tanh(x, g, w):
    return jnp.tanh(x), g, w


def seconds_of(body, rows: int, seconds: float) -> float:
    """Of one call of `body` on every device, the shortest of several loops."""
    mesh = Mesh(jax.devices(), "core")
    spec = PartitionSpec("core")

    def loop(data, times):
        # Twice, there and back, or each result would be copied to where it came from.
        return jax.lax.fori_loop(0, times, lambda _, data: body(*body(*data)), data)

    call = jax.jit(
        jax.shard_map(
            *(loop,),
            mesh=mesh,
            in_specs=(spec, PartitionSpec()),
            out_specs=spec,
            check_vma=False,
        ),
        donate_argnums=0,
    )
    count = mesh.size
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (UNITS, UNITS)))[0]
    x = jax.random.normal(jax.random.key(1), (count * rows, UNITS))
    # Products with a rotation keep their size; so do those with orthogonal columns.
    x = jnp.linalg.qr(x.reshape(count, rows, UNITS))[0].reshape(x.shape)
    data = (x, x + 0.0, jnp.tile(rotation, (count, 1)))
    times, best = 16, math.inf

    def timed() -> float:
        nonlocal data
        started = time.perf_counter()
        data = jax.block_until_ready(call(data, times))
        return time.perf_counter() - started

    timed()  # compiles
    while min(timed() for _ in range(3)) < seconds / 10:
        times *= 2  # so that starting a loop is nothing
    stop = time.perf_counter() + seconds
    while best == math.inf or time.perf_counter() < stop:
        best = min(best, timed() / times / 2)
    return best


def limit(rates: dict[str, float], layers: Layers, epochs: int) -> float:
    """Steps/s of PPO that products and tanh at these rates allow.

    Each step takes one forward pass for acting, and a forward and a backward pass per
    epoch; the input of the first layer needs no gradient. Losses, shuffling and the
    environment are left out, and narrow layers count as fast as wide ones.

    Args:
      rates: FLOP/s and tanh/s, by the names that `main` prints.
      layers: (inputs, outputs) of each layer, of each network.
      epochs: passes over each trajectory.
    """
    flops = {
        "forward": (1 + epochs) * sum(_flops(net) for net in layers),
        "input_gradient": epochs * sum(_flops(net[1:]) for net in layers),
        "weight_gradient": epochs * sum(_flops(net) for net in layers),
    }
    faster = max(rates["weight_gradient"], rates["weight_gradient_transposed"])
    rates = rates | {"weight_gradient": faster}
    units = sum(outputs for net in layers for _, outputs in net[:-1])
    seconds = sum(count / rates[name] for name, count in flops.items())
    return 1 / (seconds + (1 + epochs) * units / rates["tanh"])


def _flops(layers: tuple[tuple[int, int], ...]) -> int:
    """Of one row through these layers."""
    return sum(2 * inputs * outputs for inputs, outputs in layers)


def main(seconds: float, *sizes: float) -> None:
    products = (forward, input_gradient, weight_gradient, weight_gradient_transposed)
    work = {body: 2 * UNITS**2 for body in products} | {tanh: UNITS}  # a row
    rates = {
        rows: {
            body.__name__: count
            * rows
            * jax.device_count()
            / seconds_of(body, rows, seconds)
            for body, count in work.items()
        }
        for rows in [*map(int, sizes)] or ROWS
    }
    speed = max(limit(found, CARTPOLE, EPOCHS) for found in rates.values())
    result = {"steps_per_second": speed, "devices": jax.device_count(), "rates": rates}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
