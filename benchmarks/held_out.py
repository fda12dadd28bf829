"""Fresh agents on held-out tasks: a learned rule, the untrained one, and a tuned A2C.

    python -m benchmarks.held_out --rule RUN/rule.safetensors --out FOLDER

Each of the three may choose its hyperparameters for a family: those with the best mean
reward at the end on worlds of their own. Reported are other worlds, one a seed: the mean
reward per step in the last tenth of training, its 95 % interval over seeds, and the curves.
A2C is IMPALA with every clip at 1, on the trajectories of an agent without policy lag.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.table
import tyro

from anakin import training
from anakin.meta import lpg
from envs_jax import batched
from envs_jax.lpg import TaskDistribution
from podracer import networks, parallel
from podracer.agent import Agent
from podracer.agents import from_flags, impala
from podracer.agents.lpg import KIND
from podracer.rules import files
from podracer.rules.lpg import Sizes
from podracer.runs import plot

POINTS = 20  # of a curve


@dataclasses.dataclass(frozen=True)
class Config:
    """What to compare."""

    rule: Path | None = None
    """rule file, as `anakin meta-train` leaves it; None: another untrained rule"""
    out: Path = Path("held-out")
    """folder of the results"""
    families: tuple[str, ...] = (
        "grid-tabular-dense",
        "grid-tabular-long",
        "grid-tabular-sparse",
        "chain-short-noisy",
    )
    optimizer: str = "sgd"
    """of LPG's agents"""
    learning_rates: tuple[float, ...] = (20.0, 40.0, 80.0)
    """of LPG's agents"""
    alpha_y: float = 0.5
    a2c_learning_rates: tuple[float, ...] = (3e-2, 1e-1, 3e-1, 1.0)
    a2c_entropy_costs: tuple[float, ...] = (0.01,)
    hidden_sizes: tuple[int, ...] = (32,)
    """of networks for observations that are not an index"""
    batch_size: int = 16
    unroll_length: int = 20
    updates: int = 120
    """of each agent"""
    seeds: int = 3
    """worlds, and as many others to choose the hyperparameters"""


def learn(
    config: Config,
    tasks: TaskDistribution,
    make_agent: Callable[[Any], Agent],
    arms: Any,
    count: int,
) -> np.ndarray:
    """Curves [families, seeds + seeds, arms, POINTS]: mean rewards per step.

    Args:
      config: what to compare.
      tasks: the families.
      make_agent: (what `arms` has of one arm, traced) -> its agent.
      arms: a tree of arrays [count, ...].
      count: number of arms.
    """

    def run(task, seed, arm):
        environment, agent = batched(tasks.environment(task)), make_agent(arm)
        unit = training.make_step(agent, environment, config.unroll_length)
        key, index = jax.random.key(seed), jnp.arange(config.batch_size)
        state = training.initial_state(key, index, agent, environment)

        def update(state, _):
            state, metrics = unit(state)
            return state, metrics["reward"]

        rewards = jax.lax.scan(update, state, length=config.updates)[1]
        return rewards.reshape(POINTS, -1).mean(1)

    numbers = range(len(tasks.families))
    found = {}  # a task of each family for each seed: the first ones drawn
    sample = jax.jit(tasks.sample)
    for i in itertools.count():
        task = sample(jax.random.key(10_000 + i))
        found.setdefault(int(task.family), []).append(task)
        if all(len(found.get(n, ())) >= 2 * config.seeds for n in numbers):
            break
    chosen = [x for n in numbers for x in found[n][: 2 * config.seeds]]
    worlds = jax.tree.map(lambda *x: jnp.stack(x), *chosen)
    over_arms = jax.vmap(run, (None, None, 0))
    over_worlds = jax.jit(jax.vmap(over_arms, (0, 0, None)))
    rewards = over_worlds(worlds, jnp.arange(len(chosen)), arms)
    return np.asarray(rewards).reshape(len(numbers), 2 * config.seeds, count, POINTS)


def chosen(config: Config, curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(curves [families, seeds, POINTS] of the worlds reported, arms [families]): those that
    were best at the end of the other worlds."""
    ends = np.nan_to_num(curves[..., -2:], nan=-np.inf).mean(-1)
    best = ends[:, : config.seeds].mean(1).argmax(-1)
    reported = curves[:, config.seeds :]
    return np.stack([x[:, arm] for x, arm in zip(reported, best)]), best


def rules(config: Config, tasks: TaskDistribution) -> tuple[Callable, Any]:
    """`make_agent` for an arm, and the arms: of the learned rule, then of the untrained."""
    sizes, weights = Sizes(8, 8, 8), None
    if config.rule is not None:
        sizes, weights, _ = files.load_rule(config.rule, KIND, Sizes())
    made = lpg.make_meta(
        lpg.Config(
            config.batch_size,
            config.unroll_length,
            optimizer=config.optimizer,
            hidden_sizes=config.hidden_sizes,
        ),
        tasks,
        sizes,
    )
    if weights is None:
        weights = made.init(jax.random.key(1))
    count = len(config.learning_rates)
    weights = jax.tree.map(
        lambda *x: jnp.repeat(jnp.stack(x), count, axis=0),
        weights,
        made.init(jax.random.key(0)),
    )
    arms = {
        "learning_rate": jnp.tile(jnp.float32(config.learning_rates), 2),
        "alpha_y": jnp.full(2 * count, config.alpha_y),
    }

    def make_agent(arm):
        weights, hyperparameters = arm
        return made.life.make_agent(weights, hyperparameters)

    return make_agent, (weights, arms)


def a2c(
    config: Config, tasks: TaskDistribution, pairs: list[tuple[float, float]]
) -> tuple[Callable, Any]:
    """The same of A2C, for `pairs` of learning rate and entropy cost."""
    spec = tasks.observation_spec()
    sizes = () if lpg.is_index(spec) else config.hidden_sizes
    network = networks.actor_critic(
        spec,
        tasks.action_spec(),
        networks.Config(torso="mlp", hidden_sizes=sizes),
    )
    base = impala.Config(reward_clipping="none", reduction="mean")

    def make_agent(arm):
        tuned = from_flags.with_numbers(base, arm)
        return impala.make_agent(tuned, network, parallel.Average(None))

    learning_rate, entropy_cost = map(jnp.float32, zip(*pairs, strict=True))
    return make_agent, {"learning_rate": learning_rate, "entropy_cost": entropy_cost}


def compared(
    config: Config, tasks: TaskDistribution
) -> dict[str, tuple[np.ndarray, list[str]]]:
    """For each method its curves, see `learn`, and the names of its arms."""
    names = [f"{x:g}" for x in config.learning_rates]
    curves = learn(config, tasks, *rules(config, tasks), 2 * len(names))
    learned, untrained = np.split(curves, 2, axis=2)
    pairs = [*itertools.product(config.a2c_learning_rates, config.a2c_entropy_costs)]
    others = learn(config, tasks, *a2c(config, tasks, pairs), len(pairs))
    return {
        "learned rule": (learned, names),
        "untrained rule": (untrained, names),
        "A2C": (others, [f"{x:g}, {y:g}" for x, y in pairs]),
    }


def interval(x: np.ndarray) -> str:
    """Mean and half the 95 % interval of the mean, by Student's t."""
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(x), 2.0)
    half = t * np.std(x, ddof=1) / len(x) ** 0.5 if len(x) > 1 else np.nan
    return f"{np.mean(x):.3g} ± {half:.2g}"


def main(config: Config) -> None:
    tasks = TaskDistribution(config.families, "never")
    table = rich.table.Table(
        "family", "method", "reward at the end", "chosen", "worlds"
    )
    steps = config.batch_size * config.unroll_length * config.updates
    config.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict] = {family: {} for family in config.families}
    for method, (curves, names) in compared(config, tasks).items():
        reported, best = chosen(config, curves)
        for family, mine, arm in zip(config.families, reported, best, strict=True):
            ends = mine[:, -2:].mean(1)
            seeds = ", ".join(f"{x:.3g}" for x in ends)
            table.add_row(family, method, interval(ends), names[arm], seeds)
            results[family][method] = mine.tolist()
    (config.out / "curves.json").write_text(json.dumps(results))
    at = np.linspace(steps / POINTS, steps, POINTS)
    for family, curves in results.items():
        groups = {
            name: [np.stack([at, np.array(x), np.ones(POINTS)], 1) for x in mine]
            for name, mine in curves.items()
        }
        plot.save(plot.compare(groups, y="reward"), config.out / f"{family}.png")
    rich.console.Console(width=110).print(table)


if __name__ == "__main__":
    main(tyro.cli(Config))
