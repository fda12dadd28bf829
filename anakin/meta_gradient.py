"""Learns an update rule: the gradient through K of Anakin's own updates (arXiv:2007.08794).

P lifetimes, each an agent with its own task, live side by side, divided over the cores as a
population's runs are. They share the rule and nothing else: learners do not average with
one another, the meta-gradient does. Podracer (arXiv:2104.06272) did this with 960 lifetimes
of 64 environments.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from anakin import population, training
from anakin.acting import unroll
from anakin.calls import make_call, with_tally
from anakin.meta import bandit, lifetimes
from anakin.meta.hidden_value import inner_state
from anakin.meta.lifetimes import Life, Lifetime
from anakin.reports import begin, make_reports, run
from envs_jax.wrappers import batched
from podracer import kernels, parallel
from podracer.agent import Agent, Key, Metrics, PyTree
from podracer.errors import check_at_least_one, check_ranges
from podracer.metrics.episodes import Episodes


@dataclasses.dataclass(frozen=True)
class Config:
    """What is differentiated, and how the rule learns from it; the defaults are LPG's."""

    lifetimes: int = 960
    """number P of lifetimes at a time, over all cores"""
    updates: int = 5
    """number K of an agent's updates that a meta-gradient goes through"""
    learning_rate: float = 1e-4
    """learning rate of the rule's weights (Adam)"""
    max_gradient_norm: float = 1.0
    """global norm to which larger meta-gradients are scaled down"""
    collapsed: float = 0.01
    """share of the largest possible entropy of an agent's policy or predictions below
    which its lifetime ends"""

    def __post_init__(self):
        check_at_least_one(lifetimes=self.lifetimes, updates=self.updates)
        check_ranges(self, 0.0, math.inf, "learning_rate", "max_gradient_norm")
        check_ranges(self, 0.0, 1.0, "collapsed")


class State(NamedTuple):
    """The whole state of meta-training."""

    weights: PyTree  # of the rule
    opt_state: optax.OptState
    arms: bandit.Bandit
    lifetimes: Lifetime  # [P, ...]
    key: Key  # never changes
    updates: jax.Array  # uint32 [], of the rule
    tally: Any = ()

    @property
    def episodes(self) -> Episodes:
        """[P, B] of all lifetimes, since the last report."""
        return self.lifetimes.run.episodes

    def counting(self, episodes: Episodes, tally: Any) -> "State":
        """The state with other counts."""
        run = self.lifetimes.run.counting(episodes, ())
        return self._replace(lifetimes=self.lifetimes._replace(run=run), tally=tally)


LAYOUT = State(
    weights=parallel.SHARED,
    opt_state=parallel.SHARED,
    arms=parallel.SHARED,
    lifetimes=parallel.BATCH,
    key=parallel.SHARED,
    updates=parallel.SHARED,
    tally=parallel.LOCAL,
)


class Meta(NamedTuple):
    """What is learned, and from what."""

    init: Callable[[Key], PyTree]  # (key) -> the rule's first weights
    life: Life
    # (params, trajectory) -> predictions [T + 1, B, ...] of a lifetime's agent
    predict: Callable
    objective: Callable  # see `meta.objective.make_objective`
    most_entropy: dict[str, float]  # of a metric, what it could be at most


def train(
    meta: Meta,
    config: Config,
    *,
    total_steps: int,
    seed: int = 0,
    updates_per_report: int | None = None,
    cores: int | None = None,
    restore: Callable[[State, State], State] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[State, dict[str, float] | None]]:
    """Learns a rule; yields (state, metrics) at each report, as `anakin.train` does.

    Args:
      meta: the rule, its agents and their tasks.
      config: of the meta-gradient.
      total_steps: environment steps of all lifetimes together, rounded up to whole updates
        of the rule, each of which takes K + 1 trajectories of every lifetime.
      seed, updates_per_report, cores, restore, stopped: as for `anakin.train`.

    Raises:
      UserError: an argument is impossible.
      FloatingPointError: a metric is not finite; names it and the update.
    """
    check_at_least_one(total_steps=total_steps)
    kernels.install()
    mesh = parallel.make_mesh(cores)
    population.check_shares(config.lifetimes, mesh.size, "lifetimes")
    programs = make_programs(meta, config, mesh)
    state, compile = begin(programs, jax.random.key(seed), number=config.lifetimes)
    reports = make_reports(steps(meta, config), total_steps, updates_per_report)
    return run(compile, state, LAYOUT, reports, restore, stopped)


def steps(meta: Meta, config: Config) -> int:
    """Environment steps of an update of the rule."""
    life = meta.life
    each = life.batch_size * life.unroll_length * (config.updates + 1)
    return config.lifetimes * each


def make_programs(meta: Meta, config: Config, mesh: Any) -> training.Programs:
    """(key, index [P]) -> State, and (state, updates, report) -> ..., see `make_call`."""
    # traced once for both programs
    unit = jax.jit(partial(update, meta, config), inline=True)

    def start(key: Key, index: jax.Array) -> State:
        return with_tally(initial_state(meta, config, key, index), unit)

    shared = parallel.SHARED
    return training.Programs(
        parallel.over_shares(start, mesh, (shared, parallel.BATCH), LAYOUT),
        parallel.over_shares(
            make_call(unit, parallel.MEMBERS),
            mesh,
            (LAYOUT, shared, shared),
            (LAYOUT, shared, shared),
            donate=(0,),
        ),
    )


def initial_state(meta: Meta, config: Config, key: Key, index: jax.Array) -> State:
    """One core's state before the first update, with the lifetimes `index` [P / cores]."""
    weights_key, key = jax.random.split(key)
    weights = meta.init(weights_key)
    families = len(meta.life.tasks.families)
    arms = bandit.initial_state(families, meta.life.number_of_arms)

    def begin(index):
        return lifetimes.begin(meta.life, weights, key, index, arms)

    return State(
        weights,
        make_optimizer(config).init(weights),
        arms,
        jax.vmap(begin)(index),
        key,
        jnp.uint32(0),
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """The rule's."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.adam(config.learning_rate),
    )


def update(meta: Meta, config: Config, state: State) -> tuple[State, Metrics]:
    """The unit of meta-training: one update of the rule, on a core."""
    optimizer, average = make_optimizer(config), parallel.MEMBERS

    def loss(weights):
        each = jax.vmap(partial(live, meta, config.updates), (None, 0))
        objective, rest = each(weights, state.lifetimes)
        return -jnp.mean(objective), rest

    gradients, (lived, metrics) = jax.grad(loss, has_aux=True)(state.weights)
    gradients = average(gradients)
    directions, opt_state = optimizer.update(gradients, state.opt_state)
    weights = optax.apply_updates(state.weights, directions)

    over = lived.run.updates >= lived.ends
    for name, most in meta.most_entropy.items():
        over |= metrics[name] < config.collapsed * most
    arms = learned(state.arms, lived, over, config.lifetimes)

    def renew(lifetime, over):
        args = meta.life, weights, state.key, lifetime, arms, over
        return lifetimes.renewed(*args)

    metrics |= {"meta/ended": over.astype(jnp.float32)}
    metrics = jax.tree.map(jnp.mean, metrics)
    metrics["meta/gradient_norm"] = optax.tree.norm(gradients)
    state = state._replace(
        weights=weights,
        opt_state=opt_state,
        arms=arms,
        lifetimes=jax.vmap(renew)(lived, over),
        updates=state.updates + 1,
    )
    return state, metrics


def live(
    meta: Meta, updates: int, weights: PyTree, lifetime: Lifetime
) -> tuple[jax.Array, tuple[Lifetime, Metrics]]:
    """(objective, (lifetime, metrics)) after K `updates` and a trajectory of a lifetime."""
    life = meta.life
    agent = lifetimes.agent_of(life, weights, lifetime.arm)
    environment = batched(life.tasks.environment(lifetime.task))
    step = training.make_step(agent, environment, life.unroll_length)

    def unit(run, _):
        return step(run)

    # Recomputed for the gradient: memory holds the activations of one update.
    run, each = jax.lax.scan(jax.checkpoint(unit), lifetime.run, length=updates)
    run, objective, metrics = judge(meta, agent, environment, run, each)
    metrics |= jax.tree.map(jnp.mean, each)
    reward = lifetime.reward + updates * metrics["reward"]
    return objective, (lifetime._replace(run=run, reward=reward), metrics)


def judge(
    meta: Meta, agent: Agent, environment: Any, run: training.State, updates: Metrics
) -> tuple[training.State, jax.Array, Metrics]:
    """A new trajectory of the agent, and what it says of the rule: (run, objective, metrics).

    `updates` are the metrics [K] of the updates before.
    """
    life, shared = meta.life, run.learner.shared
    key, _ = training.unit_keys(run)
    actors, trajectory = unroll(
        agent.actor_step,
        agent.actor_params(run.learner),
        environment,
        life.unroll_length,
        run.actors,
        key,
    )
    predictions = meta.predict(inner_state(run.learner).shared.params, trajectory)
    advantages = life.value.advantages(shared.value, trajectory)
    objective, metrics = meta.objective(predictions, trajectory, advantages, updates)
    value, _ = life.value.update(shared.value, trajectory)
    learner = run.learner._replace(shared=shared._replace(value=value))
    return training.after_unit(run, learner, actors), objective, metrics


def learned(
    arms: bandit.Bandit, lived: Lifetime, over: jax.Array, total: int
) -> bandit.Bandit:
    """The bandit after the lifetimes that are over, on any core.

    First lifetimes are left out: they end early.
    """
    mean_reward = lived.reward / jnp.maximum(lived.run.updates.astype(jnp.float32), 1)
    ended = over & (lived.births > 0)

    def everyones(x):
        place = jnp.zeros(total).at[lived.index].set(x.astype(jnp.float32))
        return parallel.MEMBERS.total(place)

    family, arm, ended = (
        jnp.round(everyones(x)).astype(jnp.int32)
        for x in (lived.task.family, lived.arm, ended)
    )
    return bandit.record(arms, family, arm, everyones(mean_reward), ended > 0)
