"""Anakin: environment, acting and learning as one program (arXiv:2104.06272, Fig 2).

The minimal unit is a step: unroll T steps in a batch of environments, then learn once.
A program iterates the unit without returning to Python, on every core at once.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from anakin.acting import Actors, initial_actors, unroll
from anakin.calls import make_call, with_tally
from anakin.checks import check, check_played, in_one_line
from anakin.reports import begin, make_reports, run
from anakin.schedules import Scheduled, agent_at
from envs_jax.environment import Environment
from envs_jax.wrappers import batched
from podracer import kernels, parallel
from podracer.agent import Agent, Key, LearnerState, Metrics
from podracer.errors import check_seed
from podracer.metrics import tally
from podracer.metrics.episodes import Episodes
from podracer.training.agent_checks import checked_update


class State(NamedTuple):
    """The whole state of a run."""

    learner: LearnerState
    actors: Actors
    key: Key  # never changes: all random numbers derive from it and what they are for
    updates: jax.Array  # uint32 [], units done
    tally: Any = ()  # of a core, since the last report

    @property
    def episodes(self) -> Episodes:
        """[B, ...] of the batch, since the last report."""
        return self.actors.episodes

    def counting(self, episodes: Episodes, tally: Any) -> "State":
        """The state with other counts."""
        actors = self.actors._replace(episodes=episodes)
        return self._replace(actors=actors, tally=tally)


LAYOUT = State(
    learner=LearnerState(parallel.SHARED, parallel.LOCAL),
    actors=parallel.BATCH,
    key=parallel.SHARED,
    updates=parallel.SHARED,
    tally=parallel.LOCAL,
)


def train(
    agent: Agent | Scheduled,
    environment: Environment,
    *,
    batch_size: int,
    unroll_length: int,
    total_steps: int,
    seed: int = 0,
    updates_per_report: int | None = None,
    cores: int | None = None,
    reset_pool: int | None = None,
    restore: Callable[[State, State], State] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[State, dict[str, float] | None]]:
    """Trains; yields (state, metrics) at each report.

    A yielded state is valid until the next one is requested, which reuses its memory.

    Args:
      agent: any agent, or (updates done, uint32 []) -> one, whose hyperparameters may
        change with them.
      environment: a single episode of one environment; resets and batches are added here.
      batch_size: number of environments, over all cores, which share them equally.
      unroll_length: environment steps per update.
      total_steps: environment steps of the run, rounded up to whole updates.
      seed: random seed; equal seeds give identical runs.
      updates_per_report: updates between two reports; default: a hundredth of the run, at
        most four million steps, and before these after 1, 2, 4, 8, ... updates.
      cores: number of cores per host; default: all.
      reset_pool: number of new episodes per step that a core's environments share; default:
        each has its own, see `envs_jax.PooledReset`.
      restore: (initial state, its `LAYOUT`) -> the state to resume from, for example
        `checkpoint.Checkpoints.restore`. On the same number of cores it resumes bit for bit.
      stopped: asked about once a second; once true, the state is yielded a last time, with
        metrics None between two reports.

    Raises:
      UserError: an argument is impossible, the environment breaks its protocol, or the
        agent does not average what its cores share.
      FloatingPointError: a metric is not finite; names it and the update.
    """
    kernels.install()
    check_seed(seed)
    mesh = parallel.make_mesh(cores)
    check(environment, batch_size, unroll_length, total_steps, mesh.size, reset_pool)
    check_played(environment)
    programs = make_programs(agent, environment, mesh, unroll_length, reset_pool)
    with in_one_line():  # the agent may be for other actions
        state, compile = begin(programs, jax.random.key(seed), number=batch_size)
    reports = make_reports(batch_size * unroll_length, total_steps, updates_per_report)
    return run(compile, state, LAYOUT, reports, restore, stopped)


class Programs(NamedTuple):
    """What a run executes, on every core of a mesh."""

    start: Callable  # (key, index [B]) -> State
    call: Callable  # (state, updates, report) -> ..., see `make_call`; reuses the state


def make_programs(
    agent: Agent | Scheduled,
    environment,
    mesh,
    unroll_length: int,
    reset_pool: int | None,
) -> Programs:
    """The programs of a run, replicated over the cores of a mesh."""
    environment = batched(environment, reset_pool)
    step = make_step(agent, environment, unroll_length)
    step = jax.jit(step, inline=True)  # traced once for both programs

    def start(key, index):
        return with_tally(initial_state(key, index, agent, environment), step)

    return Programs(
        parallel.over_cores(start, mesh, (parallel.SHARED, parallel.BATCH), LAYOUT),
        parallel.over_cores(
            make_call(step),
            mesh,
            inputs=(LAYOUT, parallel.SHARED, parallel.SHARED),
            outputs=(LAYOUT, parallel.SHARED, parallel.SHARED),
            donate=(0,),
        ),
    )


def initial_state(
    key: Key, index: jax.Array, agent: Agent | Scheduled, environment
) -> State:
    """One core's state before the first update, with the environments `index` [B]."""
    agent = agent_at(agent, jnp.uint32(0))
    learner_key, actors_key, run_key = jax.random.split(key, 3)
    return State(
        agent.initial_learner_state(learner_key),
        initial_actors(actors_key, index, agent, environment),
        run_key,
        jnp.uint32(0),
    )


def make_step(agent: Agent | Scheduled, environment, unroll_length: int) -> Callable:
    """The minimal unit: act, then learn from the trajectory."""

    def step(state: State) -> tuple[State, Metrics]:
        now = agent_at(agent, state.updates)
        act_key, learn_key = unit_keys(state)
        actors, trajectory = unroll(
            now.actor_step,
            now.actor_params(state.learner),
            environment,
            unroll_length,
            state.actors,
            act_key,
        )
        results = now.learner_step(learn_key, state.learner, trajectory)
        learner, metrics = checked_update(results, state.learner)
        metrics = tally.joined(metrics, tally.of_environment(trajectory.timesteps))
        return after_unit(state, learner, actors), metrics

    return step


def unit_keys(state: State) -> tuple[Key, Key]:
    """The unit's keys for acting and for learning."""
    acting, learning = jax.random.split(jax.random.fold_in(state.key, state.updates))
    return acting, parallel.core_key(learning)


def after_unit(state: State, learner: LearnerState, actors: Actors) -> State:
    """The state after a unit."""
    return state._replace(learner=learner, actors=actors, updates=state.updates + 1)
