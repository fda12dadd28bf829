"""Meta-training's speed beside the same population's without the meta-gradient, and memory.

    python -m benchmarks.meta_gradient [--lifetimes 32] [--updates 1 5 10 20]

For each number K of updates: environment steps/s of meta-training; of the same lifetimes,
whose trajectories and updates are computed, but no gradient through them; and the memory
that the compiled program needs for what it keeps between operations.

    python -m benchmarks.meta_gradient --slice v3:2x4 --lifetimes 960 --batch-size 64 \
      --updates 5 --rule.prediction-size 30 --rule.memory-size 256 --rule.embedding-size 16

reports instead what the TPU's compiler makes of meta-training on that slice, which need not
be there (the extra `tpu-plan`).
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import rich.console
import rich.table
import tyro

from anakin import meta_gradient, planning
from anakin.meta import lpg
from envs_jax.lpg import TaskDistribution
from podracer import parallel
from podracer.metrics import human
from podracer.plan import compiled, report, tpu
from podracer.rules.lpg import Sizes


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    families: tuple[str, ...] = ("grid-tabular-dense",)
    lifetimes: int = 32
    batch_size: int = 16
    unroll_length: int = 20
    updates: tuple[int, ...] = (1, 5, 10, 20)
    rule: Sizes = dataclasses.field(default_factory=lambda: Sizes(8, 32, 8))
    cores: int = 1
    seconds: float = 5.0
    """of each measurement, after compilation"""
    slice: str | None = None
    """TPU slice to compile for, instead of measuring"""


def made(config: Config, updates: int) -> tuple[meta_gradient.Meta, Any]:
    """What is learned, and how."""
    meta = lpg.make_meta(
        lpg.Config(batch_size=config.batch_size, unroll_length=config.unroll_length),
        TaskDistribution(config.families),
        config.rule,
    )
    return meta, meta_gradient.Config(lifetimes=config.lifetimes, updates=updates)


def plan(config: Config) -> None:
    """Prints the compiler's report for each K."""
    slice = tpu.make_slice(config.slice)
    print(slice)
    for updates in config.updates:
        meta, training = made(config, updates)
        _, call = planning.meta_programs(meta, training, slice.cores)
        steps = meta_gradient.steps(meta, training)
        print(f"K = {updates}")
        print("\n".join(report.report(call, slice, "an update of the rule", steps)))


def measure(config: Config, updates: int) -> tuple[float, float, int]:
    """(steps/s with the meta-gradient, steps/s without it, bytes of temporary memory)."""
    meta, training = made(config, updates)
    mesh = parallel.make_mesh(config.cores)
    programs = meta_gradient.make_programs(meta, training, mesh)
    state = programs.start(jax.random.key(0), jnp.arange(config.lifetimes))
    live = partial(meta_gradient.live, meta, updates)

    def only_live(state):
        each = jax.vmap(live, (None, 0))
        objective, (lived, _) = each(state.weights, state.lifetimes)
        return state._replace(lifetimes=lived), jnp.mean(objective)[None]

    layout = meta_gradient.LAYOUT
    plain = parallel.over_shares(
        only_live, mesh, (layout,), (layout, parallel.LOCAL), donate=(0,)
    )
    plain = plain.lower(state).compile()
    steps = meta_gradient.steps(meta, training)
    state, without = speed(plain, state, steps, config.seconds)
    rest = jnp.uint32(1), jnp.bool_(True)
    call = programs.call.lower(state, *rest).compile()
    memory = call.memory_analysis().temp_size_in_bytes
    _, full = speed(lambda x: call(x, *rest), state, steps, config.seconds)
    return full, without, memory


def speed(call: Callable, state: Any, steps: int, seconds: float) -> tuple[Any, float]:
    """The last state, and environment steps/s of `state, ... = call(state)`."""
    state, *_ = jax.block_until_ready(call(state))
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        state, *_ = jax.block_until_ready(call(state))
        calls += 1
    return state, calls * steps / (time.perf_counter() - started)


def main(config: Config) -> None:
    table = rich.table.Table(
        "K", "meta-training, steps/s", "without, steps/s", "share", "memory"
    )
    for updates in config.updates:
        full, without, memory = measure(config, updates)
        share = f"{full / without:.2f}"
        numbers = human(full), human(without), share, compiled.size(memory)
        table.add_row(str(updates), *numbers)
    console = rich.console.Console(width=100)
    console.print(f"jax {jax.__version__}, {config}")
    console.print(table)


if __name__ == "__main__":
    config = tyro.cli(Config)
    parallel.use_cpu_cores(config.cores)
    plan(config) if config.slice else main(config)
