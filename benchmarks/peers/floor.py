"""What XLA reaches on this machine of the arithmetic that no entrant can do without.

    JAX_NUM_CPU_DEVICES=2 python floor.py [SECONDS [ROWS...]] [KIND...]

Plain JAX, nothing of podracer's. FLOP/s of the product of [rows, n] and [n, n] and of the
two products of its gradient, and tanh/s, of all devices together, in loops whose data stay
in cache. As one line of JSON, by n, by rows and by what is computed, with the steps/s that
the best of them allow in each kind of work; default: in all.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

ROWS = (128, 256, 512, 1_024, 2_048)
# (inputs, outputs, places): those of a layer, and at how many places of an image it is applied
Layers = tuple[tuple[tuple[int, int, int], ...], ...]


class Task(NamedTuple):
    """What is computed for an environment."""

    units: int  # n of the measured products that stand for its layers
    layers: Layers  # of each network
    epochs: int  # passes over each trajectory
    tanh: int = 0  # values of it in a forward pass; ReLUs cost nothing
    predictions: int = 1  # forward passes in an epoch: two with a target network

    @property
    def flops(self) -> dict[str, float]:
        """Of an environment step, by product.

        Each step takes one forward pass for acting, and forward passes and a backward pass
        per epoch; the input of the first layer needs no gradient.
        """
        epochs, layers = self.epochs, self.layers
        return {
            "forward": (1 + self.predictions * epochs) * sum(map(_flops, layers)),
            "input_gradient": epochs * sum(_flops(net[1:]) for net in layers),
            "weight_gradient": epochs * sum(map(_flops, layers)),
        }


class Replayed(NamedTuple):
    """What SAC computes for an environment, with a policy and two critics."""

    units: int
    layers: Layers  # of the policy and of a critic
    epochs: int  # times that a transition is learned from
    tanh: int = 0

    @property
    def flops(self) -> dict[str, float]:
        """Of an environment step, by product.

        The policy acts, and is computed at both ends of a transition; so are the critics, by
        their targets at one, and for two actions at the other, of which the policy's needs
        its gradient.
        """
        epochs, (policy, critic) = self.epochs, self.layers
        once, twice = _flops(policy), 2 * _flops(critic)
        within = _flops(policy[1:]) + 2 * 2 * _flops(critic[1:])
        return {
            "forward": once + epochs * (2 * once + 3 * twice),
            "input_gradient": epochs * within,
            "weight_gradient": epochs * (once + twice),
        }


def mlps(inputs: int, actions: int) -> Task:
    """An actor and a critic of 2 x 64, four epochs."""
    actor, critic = (
        ((inputs, 64, 1), (64, 64, 1), (64, outputs, 1)) for outputs in (actions, 1)
    )
    return Task(64, (actor, critic), 4, tanh=2 * (64 + 64))


def lstms(inputs: int, actions: int) -> Task:
    """An actor and a critic with an LSTM of 64 each, four epochs."""
    actor, critic = (
        ((inputs, 4 * 64, 1), (64, 4 * 64, 1), (64, outputs, 1))
        for outputs in (actions, 1)
    )
    # Three sigmoids, which cost as much, and two tanh of each unit.
    return Task(64, (actor, critic), 4, tanh=2 * 5 * 64)


def dqn(epochs: int) -> Task:
    """Action values of CartPole by 2 x 256."""
    layers = (4, 256, 1), (256, 256, 1), (256, 2, 1)
    return Task(256, (layers,), epochs, predictions=2)


def pendulum(epochs: int) -> Replayed:
    """A policy and critics of 2 x 256."""
    policy, critic = (
        ((inputs, 256, 1), (256, 256, 1), (256, outputs, 1))
        for inputs, outputs in ((3, 2), (3 + 1, 1))
    )
    return Replayed(256, (policy, critic), epochs)


NATURE = (
    (8 * 8 * 4, 32, 400),
    (4 * 4 * 32, 64, 81),
    (3 * 3 * 64, 64, 49),
    (3_136, 512, 1),
)


def resnet() -> Iterator[tuple[int, int, int]]:
    """IMPALA's: three blocks of five convolutions, of which the first is pooled after."""
    side, inputs = 84, 4
    for channels in (16, 32, 32):
        yield 9 * inputs, channels, side**2
        side, inputs = -(-side // 2), channels
        yield from [(9 * channels, channels, side**2)] * 4
    yield side**2 * inputs, 256, 1


TASKS = {
    "cartpole": mlps(4, 2),
    "CartPole-v1": mlps(4, 2),
    "minatar-breakout": mlps(10 * 10 * 4, 6),
    "CartPole-v1-lstm": lstms(4, 2),
    "Pong-v5": Task(512, ((*NATURE, (512, 6 + 1, 1)),), 1),
    "Pong-v5-resnet": Task(512, ((*resnet(), (256, 6 + 1, 1)),), 1),
    "pendulum-each-step": pendulum(256),
    "pendulum-parallel": pendulum(4_096 // 512),
    "cartpole-each-step": dqn(64),
    "cartpole-parallel": dqn(4_096 // 512),
}


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


def seconds_of(body, rows: int, units: int, seconds: float) -> float:
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
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (units, units)))[0]
    x = jax.random.normal(jax.random.key(1), (count * rows, units))
    # Products with a rotation keep their size; so do those with orthogonal columns.
    x = jnp.linalg.qr(x.reshape(count, rows, units))[0].reshape(x.shape)
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


def limit(rates: dict[str, float], task: Task | Replayed) -> float:
    """Steps/s that products and activation functions at these rates allow.

    Losses, shuffling, optimizers and the environment are left out, and narrow layers count
    as fast as wide ones.

    Args:
      rates: FLOP/s and tanh/s, by the names that `main` prints.
      task: what is computed.
    """
    faster = max(rates["weight_gradient"], rates["weight_gradient_transposed"])
    rates = rates | {"weight_gradient": faster}
    seconds = sum(count / rates[name] for name, count in task.flops.items())
    return 1 / (seconds + (1 + task.epochs) * task.tanh / rates["tanh"])


def _flops(layers: tuple[tuple[int, int, int], ...]) -> int:
    """Of one row through these layers."""
    return sum(2 * inputs * outputs * places for inputs, outputs, places in layers)


def measure(rows: int, units: int, seconds: float) -> dict[str, float]:
    """FLOP/s and tanh/s, by what is computed."""
    products = (forward, input_gradient, weight_gradient, weight_gradient_transposed)
    work = {body: 2 * units**2 for body in products} | {tanh: units}  # a row
    return {
        body.__name__: count
        * rows
        * jax.device_count()
        / seconds_of(body, rows, units, seconds)
        for body, count in work.items()
    }


def main(seconds: float, *sizes: float, kinds: list[str]) -> None:
    tasks = {name: task for name, task in TASKS.items() if name in (kinds or TASKS)}
    rates = {
        units: {
            rows: measure(rows, units, seconds)
            for rows in [*map(int, sizes)] or ROWS
            if rows >= units  # orthogonal columns need as many rows
        }
        for units in {task.units for task in tasks.values()}
    }
    speeds = {
        name: max(limit(found, task) for found in rates[task.units].values())
        for name, task in tasks.items()
        if rates[task.units]
    }
    result = {
        "steps_per_second": speeds,
        "devices": jax.device_count(),
        "kind": jax.devices()[0].device_kind,
        "rates": rates,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    named = [x for x in sys.argv[1:] if x in TASKS]
    main(*(float(x) for x in sys.argv[1:] if x not in TASKS), kinds=named)
