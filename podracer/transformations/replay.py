"""Replay: agents that learn from trajectories more than once (Lin 1992; arXiv:1611.01224).

Each learner core keeps a ring of the newest trajectories, each of one environment, as they
were delivered: outside of `stack_frames` it holds single frames, in bytes. Sampling is with
replacement, uniform or by priorities of this core's own (`priorities`).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer.agent import (
    Agent,
    Key,
    LearnerState,
    Metrics,
    PyTree,
    Trajectory,
    with_last,
)
from podracer.errors import UserError, check_at_least_one, check_range
from podracer.parallel import AVERAGE, Average
from podracer.transformations import examples, priorities
from podracer.transformations import ring as rings
from podracer.transformations.ring import Ring

MOST_SAMPLES = 10_000  # for each trajectory that is delivered


@dataclasses.dataclass(frozen=True)
class Config:
    """How many trajectories are kept, and how many of them are learned from again.

    A trajectory is unroll_length steps in one environment. All numbers are over all learner
    cores, which share them equally.
    """

    capacity: int = 0
    """number of trajectories to keep and learn from again, over all learner cores; 0: none.
    Each takes unroll_length + 1 timesteps, unroll_length decisions and an actor's state"""
    samples_per_insert: float = 1.0
    """number of trajectories sampled for each that is delivered"""
    minimum_fill: int = 0
    """number of trajectories to keep before the first update, over all learner cores"""
    fresh: bool = True
    """learn from the delivered trajectories as well, in one batch with the sampled ones"""
    updates: int = 1
    """number of updates for each delivered batch, each from an equal part of the samples"""
    priority: float = 0.0
    """exponent of the priorities that trajectories are sampled in proportion to, at most 1;
    0: all are sampled equally often. For agents with a weighted_step"""
    importance: float = 0.4
    """exponent of the importance weights that correct for such sampling: 0 not at all, 1
    fully; without priority it has no effect"""

    def __post_init__(self):
        check_range("replay.capacity", self.capacity, 0)
        check_range("replay.minimum_fill", self.minimum_fill, 0)
        check_at_least_one(**{"replay.updates": self.updates})
        check_range("replay.priority", self.priority, 0.0, 1.0)
        check_range("replay.importance", self.importance, 0.0, 1.0)
        rate = self.samples_per_insert
        if not 0.0 < rate <= MOST_SAMPLES:
            raise UserError(
                f"replay.samples_per_insert is {rate}; it must be above 0, at most "
                f"{MOST_SAMPLES:,}"
            )
        if self.capacity and self.minimum_fill > self.capacity:
            raise UserError(
                f"replay.minimum_fill is {self.minimum_fill}, more than "
                f"replay.capacity {self.capacity}: choose a larger capacity"
            )
        if self.fresh and self.updates > 1:
            raise UserError(
                f"replay.updates is {self.updates}, for sampled trajectories only: add "
                "--replay.no-fresh, or leave it at 1"
            )

    @property
    def learned_per_insert(self) -> float:
        """The number of times that a trajectory is learned from, on average."""
        return self.fresh + self.samples_per_insert

    def slots(self, cores: int) -> int:
        """The capacity of one of `cores`. Raises UserError where they cannot share it."""
        if self.capacity % cores:
            raise UserError(
                f"replay.capacity is {self.capacity}, which {cores} learner cores cannot "
                f"share equally: choose a multiple of {cores}"
            )
        return self.capacity // cores

    def samples(self, batch_size: int) -> int:
        """The number sampled for an update, on a core that `batch_size` are delivered to.

        Raises UserError unless it is a whole number.
        """
        count = self.samples_per_insert * batch_size / self.updates
        if round(count) < 1 or not math.isclose(count, round(count)):
            raise UserError(
                f"replay.samples_per_insert is {self.samples_per_insert:g}, which is "
                f"{count:g} trajectories for each update of a core that {batch_size} are "
                "delivered to: choose a rate, batch_size or cores that make it whole"
            )
        return round(count)


class Local(NamedTuple):
    """The local half of a replaying learner's state."""

    ring: Ring
    agent: PyTree  # the inner agent's


class Prioritized(NamedTuple):
    """The same with priorities, of another structure so that a checkpoint has either."""

    ring: Ring
    agent: PyTree
    masses: jax.Array  # float32 [M], see `priorities`


def replay(
    agent: Agent,
    config: Config,
    observation_spec: Any,
    unroll_length: int,
    average: Average = AVERAGE,
) -> Agent:
    """An agent whose `learner_step` learns from a batch of sampled trajectories.

    The delivered ones are inserted first, and may be sampled. With `config.fresh` the batch
    begins with them. The inner agent must correct for stale data. It counts
    `config.learned_per_insert` times the steps that are delivered, which its learning rate
    decays by.

    Until each core holds its share of `config.minimum_fill`, nothing is learned: the
    metric `trained` is 0, and so are the inner agent's.

    With `config.priority` the inner agent learns by its `weighted_step`, and the priorities
    that it returns are kept. A sampled trajectory counts by its importance weight, at most 1.
    A delivered one of `config.fresh` counts fully, as it does without replay: it is in the
    batch whatever its priority, so that there is nothing to correct.

    Args:
      agent: what learns; put every transformation inside, so that trajectories are kept as
        delivered and preprocessed when they are learned from.
      config: without a capacity the agent is returned as it is.
      observation_spec: of the environment.
      unroll_length: T, of all trajectories.
      average: over the learner cores.

    Raises:
      UserError: the agent cannot learn by priorities; or, when a program is traced, cores
        cannot share what `config` asks for or trajectories are of another kind.
    """
    if not config.capacity:
        return agent
    if config.priority and agent.weighted_step is None:
        raise UserError(
            f"replay.priority is {config.priority:g}, but the agent has no weighted_step: "
            "choose 0, or another agent (docs/replay.md names those that have one)"
        )

    def initial_learner_state(key):
        shared, local = agent.initial_learner_state(key)
        kind = shapes(agent, observation_spec, unroll_length)
        slots = config.slots(average.cores)
        local = Local(rings.empty(kind, slots), local)
        if config.priority:
            local = Prioritized(*local, priorities.empty(slots))
        return LearnerState(shared, local)

    def actor_params(learner_state):
        return agent.actor_params(_inner(learner_state))

    def learner_step(key, learner_state, trajectory):
        ring = rings.insert(learner_state.local.ring, trajectory)
        batch_size = trajectory.timesteps.reward.shape[1]
        count = config.samples(batch_size)

        masses = ()
        if config.priority:
            newest = rings.newest(ring, batch_size)
            masses = priorities.with_new(learner_state.local.masses, newest)

        def update(state: _Learning, key: Key) -> tuple[_Learning, Metrics]:
            sample_key, learn_key = jax.random.split(key)
            if config.priority:
                slots = priorities.sample(sample_key, state.masses, ring.filled, count)
            else:
                slots = rings.sample(sample_key, ring, count)
            batch = rings.take(ring, slots)
            if config.fresh:
                batch = rings.along(
                    lambda axis, *x: jnp.concatenate(x, axis), trajectory, batch
                )
            if config.priority:
                fresh = rings.newest(ring, batch_size if config.fresh else 0)
                state, metrics = _learn_weighted(
                    agent, config, learn_key, state, batch, fresh, slots
                )
            else:
                inner, metrics = agent.learner_step(learn_key, state.inner, batch)
                state = _Learning(inner, ())
            age = jnp.mean(rings.age_of(ring, slots) // batch_size)
            return state, metrics | {"replay_age": age}

        def learn(state: _Learning) -> tuple[_Learning, Metrics]:
            if config.updates == 1:
                return update(state, key)
            keys = jax.random.split(key, config.updates)
            state, metrics = jax.lax.scan(update, state, keys)
            return state, jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)

        # Equal on all cores, which are delivered equal numbers: all of them learn or none.
        least = -(-config.minimum_fill // average.cores)
        enough = least <= batch_size or ring.filled >= least
        state = _Learning(_inner(learner_state), masses)
        (inner, masses), metrics = _if(enough, learn, state)
        metrics |= {
            "trained": jnp.float32(enough),
            "replay_filled": ring.filled / rings.size(ring),
        }
        local = Local(ring, inner.local)
        if config.priority:
            local = Prioritized(*local, masses)
        return LearnerState(inner.shared, local), metrics

    return agent._replace(
        initial_learner_state=initial_learner_state,
        learner_step=learner_step,
        actor_params=actor_params,
        weighted_step=None,
    )


def shapes(agent: Agent, observation_spec: Any, unroll_length: int) -> Trajectory:
    """What `agent` is delivered: shapes and dtypes of a batch of one; nothing is computed."""

    def one() -> Trajectory:
        params = agent.actor_params(agent.initial_learner_state(jax.random.key(0)))
        state = agent.initial_actor_state(1)
        timestep, output = examples.one_step(
            agent.actor_step, params, state, observation_spec
        )
        timesteps, outputs = jax.tree.map(
            lambda x: jnp.zeros((unroll_length, *x.shape), x.dtype), (timestep, output)
        )
        return Trajectory(with_last(timesteps, timestep), outputs, state)

    return jax.eval_shape(one)


class _Learning(NamedTuple):
    """What an update changes."""

    inner: LearnerState  # of the inner agent
    masses: PyTree  # as in `Prioritized`, or ()


def _inner(learner_state: LearnerState) -> LearnerState:
    return LearnerState(learner_state.shared, learner_state.local.agent)


def _learn_weighted(
    agent: Agent,
    config: Config,
    key: Key,
    state: _Learning,
    batch: Trajectory,
    fresh: jax.Array,
    sampled: jax.Array,
) -> tuple[_Learning, Metrics]:
    """An update from `batch`, whose trajectories are in the slots `fresh` and `sampled`."""
    inner, masses = state
    weight = priorities.weights(masses[sampled], config.importance)
    own = {"replay_weight": jnp.mean(weight)}
    weight = jnp.concatenate([jnp.ones(fresh.shape), weight])
    inner, metrics, priority = agent.weighted_step(key, inner, batch, weight)
    # Where a priority is not finite, neither is this metric, which stops the run.
    own |= {"replay_priority": jnp.mean(priority)}
    slots = jnp.concatenate([fresh, sampled])
    masses = priorities.updated(masses, slots, priority, config.priority)
    return _Learning(inner, masses), metrics | own


def _if(
    enough: jax.Array | bool, learn: Callable, state: _Learning
) -> tuple[_Learning, Metrics]:
    """`learn(state)`, or the same state and metrics of 0."""
    if enough is True:
        return learn(state)
    learn = jax.jit(learn, inline=True)  # traced once for both of its uses below

    def skip(state):
        metrics = jax.eval_shape(learn, state)[1]
        return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)

    return jax.lax.cond(enough, learn, skip, state)
