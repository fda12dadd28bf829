"""MuZero's speed: what the search costs, beside mctx's own, and what splitting a batch gives.

    python -m benchmarks.muzero [--simulations 4 16 50] [--batch-size 64] [--updates 1 2 4]

On Catch, one core in Anakin: steps/s of training, and of its search alone, for each number
of simulations; `share` is the search's share of the time. `/ mctx` is our search's speed
over that of mctx's own policy, which draws from one key for the batch, with the same
network and batch. They take turns; each figure is the best of `repeats`. Then Sebulba's
steps/s against N, the updates from each trajectory (arXiv:2104.06272).
"""

import dataclasses
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import mctx
import rich.console
import rich.table
import tyro

import anakin
import envs_jax
import sebulba
from benchmarks.anakin import train_speed
from podracer import parallel
from podracer.agents import muzero
from podracer.agents.muzero.search import make_search
from podracer.metrics import human
from podracer.networks import world_model
from sebulba import cores, host_environments


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    simulations: tuple[int, ...] = (4, 16, 50)
    policies: tuple[Literal["muzero", "gumbel"], ...] = ("muzero", "gumbel")
    batch_size: int = 64
    unroll_length: int = 16
    hidden_size: int = 64
    updates: tuple[int, ...] = (1, 2, 4, 8)
    """N, updates from each trajectory in Sebulba"""
    seconds: float = 2.0
    """of each measurement, after compilation"""
    trajectories: int = 20
    """of each measurement in Sebulba"""
    repeats: int = 3


def make_model(config: Config) -> world_model.Model:
    environment = envs_jax.make("catch")
    return world_model.make_model(
        environment.observation_spec(),
        environment.action_spec(),
        world_model.Config(hidden_size=config.hidden_size),
    )


def mctx_search(settings: muzero.Config, model: world_model.Model) -> Callable:
    """As our search, written as mctx's examples are."""

    def evaluate(params, hidden):
        logits, value = model.prediction(params, hidden)
        return {"prior_logits": logits, "value": model.support.mean(value)}

    def recurrent(params, key, action, hidden):
        hidden, reward = model.dynamics(params, hidden, action)
        discount = jnp.full(action.shape, settings.discount_factor)
        output = mctx.RecurrentFnOutput(
            reward=model.support.mean(reward),
            discount=discount,
            **evaluate(params, hidden),
        )
        return output, hidden

    policies = {"muzero": mctx.muzero_policy, "gumbel": mctx.gumbel_muzero_policy}

    def search(key, params, observation):
        hidden = model.representation(params, observation)
        root = mctx.RootFnOutput(embedding=hidden, **evaluate(params, hidden))
        output = policies[settings.policy](
            params, key, root, recurrent, settings.num_simulations
        )
        return output.action, output.action_weights, output.search_tree.summary().value

    return search


def our_search(settings: muzero.Config, model: world_model.Model) -> Callable:
    find = make_search(settings, model)

    def search(key, params, observation):
        keys = jax.random.split(key, observation.shape[0])
        return tuple(find(keys, params, observation, jnp.float32(1.0), True))

    return search


def searches(
    config: Config, settings: muzero.Config, model: world_model.Model
) -> list[float]:
    """Decisions/s of our search and of mctx's, by turns; the best of each."""
    params = jax.jit(model.init)(jax.random.key(0))
    observation = jax.random.uniform(jax.random.key(1), (config.batch_size, 10, 5))
    calls = [
        jax.jit(make(settings, model)).lower(jax.random.key(0), params, observation)
        for make in (our_search, mctx_search)
    ]
    compiled = [call.compile() for call in calls]
    best = [0.0, 0.0]
    for _ in range(config.repeats):
        for i, call in enumerate(compiled):
            run = partial(call, jax.random.key(0), params, observation)
            best[i] = max(best[i], calls_per_second(run, config.seconds))
    return [x * config.batch_size for x in best]


def calls_per_second(call: Callable[[], Any], seconds: float) -> float:
    jax.block_until_ready(call())
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        jax.block_until_ready(call())
        count += 1
    return count / (time.perf_counter() - started)


def training(config: Config, settings: muzero.Config, model: world_model.Model):
    """Steps/s of `anakin.train` on one core."""
    run = anakin.train(
        muzero.make_agent(settings, model),
        envs_jax.make("catch"),
        batch_size=config.batch_size,
        unroll_length=config.unroll_length,
        total_steps=10**12,
        updates_per_report=4,
        cores=1,
    )
    next(run)
    return max(train_speed(run, config.seconds) for _ in range(config.repeats))


def search_table(config: Config) -> rich.table.Table:
    table = rich.table.Table(
        *("policy", "simulations", "training", "search", "share", "mctx", "/ mctx"),
        title="environment steps/s on one core, and decisions/s of the search alone",
    )
    model = make_model(config)
    for policy in config.policies:
        for number in config.simulations:
            settings = muzero.Config(policy=policy, num_simulations=number)
            ours, theirs = searches(config, settings, model)
            whole = training(config, settings, model)
            table.add_row(
                *(policy, str(number)),
                *map(human, (whole, ours)),
                f"{whole / ours:.2f}",
                human(theirs),
                f"{ours / theirs:.2f}",
            )
    return table


def split_table(config: Config) -> rich.table.Table:
    """Sebulba's speed against N, with the acting batch N times the learning batch."""
    table = rich.table.Table(
        *("N", "acting batch", "steps/s", "updates/s", "learner waiting"),
        title="Sebulba, one actor core and one learner core, learning batches of "
        f"{config.batch_size}",
    )
    settings = muzero.Config(policy="gumbel", num_simulations=config.simulations[0])
    for updates in config.updates:
        batch_size = config.batch_size * updates

        def make_environment(thread, batch_size=batch_size):
            options = host_environments.default_options("jax:catch")
            return host_environments.make("jax:catch", batch_size, thread, 1, options)

        run = sebulba.train(
            muzero.make_agent(settings, make_model(config)),
            make_environment,
            unroll_length=config.unroll_length,
            total_steps=10**12,
            cores=cores.split(jax.devices()[:2]),
            threads_per_core=1,
            updates_per_trajectory=updates,
            trajectories_per_report=config.trajectories,
        )
        next(run)
        rows = [next(run)[1] for _ in range(config.repeats)]
        run.close()
        best = max(rows, key=lambda row: row["steps_per_second"])
        table.add_row(
            *(str(updates), str(batch_size)),
            human(best["steps_per_second"]),
            human(best["learner_steps_per_second"]),
            f"{best['learner_waiting']:.2f}",
        )
    return table


def main(config: Config) -> None:
    parallel.use_cpu_cores(2)
    console = rich.console.Console(width=110)
    load = os.getloadavg()[0]
    console.print(
        f"{parallel.processors()} CPUs, load {load:.1f}, jax {jax.__version__}"
    )
    console.print(search_table(config))
    console.print(split_table(config))


if __name__ == "__main__":
    main(tyro.cli(Config))
