"""A lifetime: one agent that learns one task by an update rule, from birth to reset."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from anakin import training
from anakin.meta import bandit
from anakin.meta.hidden_value import Value, beside
from envs_jax.wrappers import batched
from podracer.agent import Agent, Key, PyTree


class Tasks(Protocol):
    """A distribution over tasks, as `envs_jax.lpg.TaskDistribution`."""

    families: tuple[str, ...]

    def sample(self, key: Key) -> Any:
        """A task, with its `family`, int32 []."""

    def environment(self, task: Any) -> Any:
        """Its environment; the task may be traced."""


class Life(NamedTuple):
    """What all lifetimes have in common."""

    tasks: Tasks
    # (weights of the rule, hyperparameters of an arm) -> the agent; all may be traced
    make_agent: Callable[[PyTree, dict[str, jax.Array]], Agent]
    arms: dict[str, jax.Array]  # [A], the hyperparameters of each arm of the bandit
    value: Value
    batch_size: int
    unroll_length: int
    length: int  # trajectories until it ends

    @property
    def number_of_arms(self) -> int:
        return len(next(iter(self.arms.values())))


class Lifetime(NamedTuple):
    """The state of one lifetime."""

    index: jax.Array  # int32 [], its number among those that live at the same time
    births: jax.Array  # uint32 [], of earlier lifetimes with this number
    task: Any
    arm: jax.Array  # int32 [], of the bandit
    ends: jax.Array  # uint32 [], trajectories until it ends
    reward: jax.Array  # float32 [], sum over trajectories of the mean reward
    run: training.State  # `updates` counts trajectories


def agent_of(life: Life, weights: PyTree, arm: jax.Array) -> Agent:
    """A lifetime's agent, with the value function that it cannot see.

    Its trajectories are constants of the meta-gradient: acting stops gradients.
    """
    agent = life.make_agent(weights, {name: x[arm] for name, x in life.arms.items()})
    agent = beside(agent, life.value)
    return agent._replace(
        actor_params=lambda state: jax.lax.stop_gradient(agent.actor_params(state))
    )


def begin(
    life: Life, weights: PyTree, key: Key, index: jax.Array, arms: bandit.Bandit
) -> Lifetime:
    """The first lifetime of number `index`; it ends early, at a random moment.

    So the lifetimes that live at the same time are of all ages.
    """
    lifetime = _born(life, weights, key, index, jnp.uint32(0), arms)
    age_key = jax.random.fold_in(lifetime.run.key, 2**31)
    ends = jax.random.randint(age_key, (), 1, life.length + 1)
    return lifetime._replace(ends=ends.astype(jnp.uint32))


def renewed(
    life: Life,
    weights: PyTree,
    key: Key,
    lifetime: Lifetime,
    arms: bandit.Bandit,
    over: jax.Array,
) -> Lifetime:
    """The same lifetime or, where it is `over`, its successor: new in all but its number."""
    fresh = _born(life, weights, key, lifetime.index, lifetime.births + 1, arms)
    # Episodes that finished since the last report are still to be reported.
    old, new = lifetime.run.episodes, fresh.run.episodes
    counts = {x: getattr(old, x) for x in ("finished", "return_sum", "length_sum")}
    counts["lost"] = new.lost[0], old.lost[1]
    run = fresh.run.counting(new._replace(**counts), ())
    return jax.tree.map(
        lambda a, b: jnp.where(over, a, b), fresh._replace(run=run), lifetime
    )


def _born(
    life: Life,
    weights: PyTree,
    key: Key,
    index: jax.Array,
    births: jax.Array,
    arms: bandit.Bandit,
) -> Lifetime:
    key = jax.random.fold_in(jax.random.fold_in(key, index), births)
    task_key, arm_key, run_key = jax.random.split(key, 3)
    task = life.tasks.sample(task_key)
    arm = bandit.choose(arm_key, arms, task.family)
    agent = agent_of(life, weights, arm)
    environment = batched(life.tasks.environment(task))
    places = jnp.arange(life.batch_size)
    run = training.initial_state(run_key, places, agent, environment)
    ends = jnp.uint32(life.length)
    return Lifetime(index, births, task, arm, ends, jnp.float32(0.0), run)
