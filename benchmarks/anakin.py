"""Anakin's speed beside the speed of its parts, all measured in one run.

    python -m benchmarks.anakin [--envs catch cartpole] [--cores 1 2] [--seconds 1]

For each environment, batch size and unroll length: steps/s of the environment alone
(random actions), of acting (environment and policy), of learning alone (from a fixed
trajectory) and of training, whose limit is acting plus learning. `share` is training over
that limit. Then the memory of a
process against the length of its run.
"""

import dataclasses
import itertools
import resource
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import rich.console
import rich.progress
import rich.table
import tyro

import anakin
import envs_jax
from anakin import acting, training
from envs_jax import Batched, auto_reset
from podracer import networks, parallel
from podracer.agent import ActorOutput, Agent, Trajectory
from podracer.agents import impala, ppo
from podracer.metrics import human


class Setup(NamedTuple):
    """An agent's algorithm and network."""

    algorithm: ModuleType
    network: networks.Config


AGENTS = {
    "impala": Setup(impala, networks.Config()),
    "ppo": Setup(ppo, networks.Config("mlp", activation="tanh", separate_value=True)),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    envs: tuple[str, ...] = ("catch", "cartpole")
    batch_sizes: tuple[int, ...] = (64, 512, 2_048, 8_192)
    unroll_lengths: tuple[int, ...] = (16, 32, 128)
    cores: tuple[int, ...] = (1, parallel.processors())
    seconds: float = 1.0
    """of each measurement, after compilation"""
    agent: Literal["impala", "ppo"] = "impala"
    """impala, or ppo as benchmarks.peers has it: separate actor and critic"""
    steps: int = 200_000
    """environment steps per program, so that launching it costs little"""
    memory: bool = True
    """also measure the memory of a run against its length"""


def make_agent(name: str, environment: envs_jax.Environment) -> Agent:
    """IMPALA with one network of 2 x 64, or PPO with two of tanh units."""
    algorithm, config = AGENTS[name]
    network = networks.actor_critic(
        environment.observation_spec(), environment.action_spec(), config
    )
    return algorithm.make_agent(algorithm.Config(), network)


def measure(
    config: Config, name: str, batch_size: int, unroll_length: int, cores: int
) -> dict[str, float]:
    """Steps/s of the parts and of the whole, and seconds of compilation."""
    bare = envs_jax.make(name)
    agent = make_agent(config.agent, bare)
    environment = Batched(auto_reset(bare))
    num_actions = bare.action_spec().num_values
    mesh = parallel.make_mesh(cores)
    steps = batch_size * unroll_length
    repeats, seconds = max(1, config.steps // steps), config.seconds

    def unroll(state, actor_step):
        key, _ = training.unit_keys(state)
        params = agent.actor_params(state.learner)
        return acting.unroll(
            actor_step, params, environment, unroll_length, state.actors, key
        )

    def random_act(trajectory):
        extras = jax.tree.map(lambda x: jnp.zeros_like(x[0]), trajectory.outputs.extras)

        def act(keys, params, actor_state, timestep):
            action = jax.random.bits(keys[0], keys.shape) % num_actions
            return actor_state, ActorOutput(action.astype(jnp.int32), extras)

        return act

    def only_acts(choose_act):
        def step(carry):
            state = carry[0]
            actors, trajectory = unroll(state, choose_act(carry[1]))
            state = state._replace(actors=actors, updates=state.updates + 1)
            return state, trajectory  # returned, or the compiler would remove it

        return step

    def only_learns(carry):
        state, trajectory = carry
        learner, _ = agent.learner_step(state.key, state.learner, trajectory)
        return state._replace(learner=learner), trajectory

    def start(key, index):
        state = training.initial_state(key, index, agent, environment)
        return state, unroll(state, agent.actor_step)[1]

    layout = (
        training.LAYOUT,
        Trajectory(parallel.SEQUENCE, parallel.SEQUENCE, parallel.BATCH),
    )

    def speed(step: Callable) -> float:
        def iterate(carry):
            return jax.lax.fori_loop(0, repeats, lambda _, c: step(c), carry)

        call = parallel.over_cores(iterate, mesh, (layout,), layout, donate=(0,))
        return steps_per_second(call, started(), steps * repeats, seconds)

    def started():
        inputs = (parallel.SHARED, parallel.BATCH)
        make = parallel.over_cores(start, mesh, inputs, layout)
        return make(jax.random.key(0), jnp.arange(batch_size))

    run = anakin.train(
        agent,
        bare,
        batch_size=batch_size,
        unroll_length=unroll_length,
        total_steps=10**12,
        updates_per_report=repeats,
        cores=cores,
    )
    compile_seconds = next(run)[1]["compile_seconds"]
    return {
        "environment": speed(only_acts(random_act)),
        "acting": speed(only_acts(lambda _: agent.actor_step)),
        "learning": speed(only_learns),
        "training": train_speed(run, seconds),
        "compile_seconds": compile_seconds,
    }


def steps_per_second(call: Callable, state, steps: int, seconds: float) -> float:
    """Speed of `state = call(state)`, which takes `steps` environment steps."""
    state = jax.block_until_ready(call(state))
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        state = jax.block_until_ready(call(state))
        calls += 1
    return calls * steps / (time.perf_counter() - started)


def train_speed(run: Iterator, seconds: float) -> float:
    """Steps/s of `anakin.train` as its user sees it, the host's part included."""
    first, started = next(run)[1]["steps"], time.perf_counter()
    while time.perf_counter() - started < seconds:
        steps = next(run)[1]["steps"]
    return (steps - first) / (time.perf_counter() - started)


def speeds(config: Config) -> rich.table.Table:
    """One row a setting."""
    names = ("environment", "acting", "learning", "training")
    table = rich.table.Table(
        "cores", "env", "B", "T", *names, "limit", "share", "compile s"
    )
    settings = itertools.product(
        config.cores, config.envs, config.batch_sizes, config.unroll_lengths
    )
    for setting in rich.progress.track([*settings], "measuring"):
        cores, env, batch_size, unroll_length = setting
        got = measure(config, env, batch_size, unroll_length, cores)
        limit = 1 / (1 / got["acting"] + 1 / got["learning"])
        numbers = [human(got[name]) for name in names]
        table.add_row(
            *map(str, setting),
            *numbers,
            human(limit),
            f"{got['training'] / limit:.2f}",
            f"{got['compile_seconds']:.1f}",
        )
    return table


def memory() -> rich.table.Table:
    """The process's peak memory after more and more calls of one run."""
    bare = envs_jax.make("catch")
    run = anakin.train(
        make_agent("impala", bare),
        bare,
        batch_size=64,
        unroll_length=16,
        total_steps=10**12,
        updates_per_report=100,
    )
    table = rich.table.Table("updates", "environment steps", "peak memory, MB")
    reports = (100, 1_000, 5_000, 20_000, 50_000)
    for _, metrics in run:
        if metrics["updates"] in reports:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            table.add_row(
                human(metrics["updates"]), human(metrics["steps"]), f"{peak:.0f}"
            )
        if metrics["updates"] >= reports[-1]:
            return table
    raise AssertionError("unreachable")


if __name__ == "__main__":
    config = tyro.cli(Config)
    parallel.use_cpu_cores(max(config.cores))
    console = rich.console.Console(width=110)
    console.print(f"jax {jax.__version__}, {jax.devices()}")
    if config.memory:
        console.print(memory())
    console.print(speeds(config))
