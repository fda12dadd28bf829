"""Sebulba: environments on the host, actor cores, learner cores (arXiv:2104.06272).

Actor threads step batches of host environments, and their core decides the actions.
Trajectories go from core to core to the learner, and parameters come back. The learner is
the thread that iterates over `train`: nothing is learned while the caller holds a report.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from podracer import kernels, parallel
from podracer.agent import Agent
from podracer.errors import check_seed
from podracer.parallel import hosts, watch
from podracer.training.agent_checks import check_initial
from sebulba.actor import Actor, running
from sebulba.cores import Cores
from sebulba.host_environments.environment import capabilities_of
from sebulba.learner import Learner, State
from sebulba.report import Report
from sebulba.starting import (
    check,
    close_unstarted,
    closing,
    make_actors,
    make_environments,
    most_ahead,
    resume,
)
from sebulba.transport import ParameterServer, TrajectoryQueue


def train(
    agent: Agent,
    make_environment: Callable[[int], Any],
    *,
    unroll_length: int,
    total_steps: int,
    cores: Cores,
    threads_per_core: int = 2,
    updates_per_trajectory: int = 1,
    max_lag: int | None = None,
    late: Literal["wait", "drop"] = "wait",
    seed: int = 0,
    trajectories_per_report: int | None = None,
    restore: Callable[[State, State], State] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[State, dict[str, float] | None]]:
    """Trains; yields (the learner's state, metrics) at each report.

    A yielded state is valid until the next one is requested, which reuses its memory.

    Args:
      agent: any agent, the same as Anakin's.
      make_environment: (number of an actor thread, counted over all hosts) -> its batch of
        host environments.
      unroll_length: environment steps per trajectory.
      total_steps: environment steps to learn from, rounded up to whole trajectories.
      cores: which cores of this host act and which learn.
      threads_per_core: number of actor threads per core; while one steps its environments,
        the core serves another.
      updates_per_trajectory: learner updates, each from an equal part of the batch.
      max_lag: most updates between acting and learning; None: no limit, the newest
        parameters act, as in the paper. 0 with one actor thread is lock-step, which repeats
        bit for bit if the environment does.
      late: how `max_lag` is kept: actors wait, or late trajectories are dropped.
      seed: random seed of the agent; environments have their own.
      trajectories_per_report: trajectories between two reports; default: a hundredth of the
        run, at most 1,000, and before these after 1, 2, 4, 8, ... trajectories.
      restore: (initial state, its layout) -> the state to resume from, for example
        `checkpoint.Checkpoints.restore`. In lock-step, with environments that offer
        `snapshot` and on as many cores, it resumes bit for bit. Otherwise the learner does,
        but environments begin new episodes and actors draw other random numbers.
      stopped: asked after each trajectory; once true, the state is yielded a last time,
        with metrics None between two reports.

    Raises:
      UserError: an argument is impossible, or the agent does not average what its learner
        cores share.
      FloatingPointError: a metric is not finite; names it and the update.
      TimeoutError: nothing moved for minutes.
      Exception: whatever an environment raised, with its traceback.
    """
    kernels.install()
    check_seed(seed)
    check(
        cores,
        max_lag,
        late,
        unroll_length=unroll_length,
        total_steps=total_steps,
        threads_per_core=threads_per_core,
        updates_per_trajectory=updates_per_trajectory,
    )
    threads, host = threads_per_core * len(cores.actors), hosts.this()
    environments = make_environments(
        lambda number: make_environment(host * threads + number),
        threads,
        len(cores.learners) * updates_per_trajectory,
    )
    with closing(environments):
        capabilities = capabilities_of(environments[0])
        check_initial(agent, environments[0].batch_size)
        learner_key, *actor_keys = jax.random.split(jax.random.key(seed), 1 + threads)
        learner = Learner(
            agent, parallel.over_hosts(cores.learners), updates_per_trajectory
        )
        learner.begin(learner_key)
        server = ParameterServer(cores.actors)
        ahead = most_ahead(max_lag, late, updates_per_trajectory)
        queue = TrajectoryQueue(threads, ahead, capabilities.patience)
        actors = make_actors(
            agent, environments, unroll_length, cores, actor_keys, server, queue
        )
        report = Report(
            queue, environments, unroll_length, total_steps, trajectories_per_report
        )
        lock_step = ahead == 0 and threads == 1
        resumable = actors[0] if lock_step and capabilities.snapshot else None
        if restore:
            resume(restore, learner, server, report, resumable)
    oldest = max_lag if late == "drop" and max_lag is not None else np.inf
    pipeline = Pipeline(actors, queue, learner, server)
    reports = parallel.checked(learn(pipeline, report, oldest, resumable, stopped))
    weakref.finalize(reports, close_unstarted, actors)  # if nobody iterates
    return reports


class Pipeline(NamedTuple):
    """What a host runs (Fig. 3 of the paper)."""

    actors: list[Actor]  # threads, which fill unrolls
    queue: TrajectoryQueue  # trajectories, from the actors to the learner
    learner: Learner  # in the caller's thread
    server: ParameterServer  # parameters, from the learner to the actors


def learn(
    pipeline: Pipeline,
    report: Report,
    oldest: float,
    resumable: Actor | None,
    stopped: Callable[[], bool],
) -> Iterator[tuple[State, dict[str, float] | None]]:
    """A trajectory in, parameters out; yields what `train` does.

    Args:
      pipeline: of this host.
      report: of the run so far.
      oldest: the lag beyond which a trajectory is dropped.
      resumable: the actor whose snapshot a yielded state has, if any.
      stopped: as for `train`.
    """
    actors, queue, learner, server = pipeline
    server.publish(learner.params, learner.updates)
    stop_due = hosts.Ends(stopped)
    with running(actors, queue):
        stops = False
        while not (report.complete or stops):
            delivery = queue.get()
            lag = learner.updates - delivery.versions
            if lag.max() > oldest:
                report.drop(delivery)
                continue
            learner.learn(delivery.parts)
            server.publish(learner.params, learner.updates)
            report.add(delivery, lag)
            due, stops = report.due, stop_due()
            # In lock-step the actor stands still until `learned` is called.
            snapshot = resumable.snapshot() if resumable and (due or stops) else ()
            queue.learned()
            if due or stops:
                row = report.row(learner) if due else None
                state = learner.whole_state(
                    snapshot, report.sums() if resumable else ()
                )
                with queue.paused():
                    yield state, row
                report.start_clock()  # the caller's time is not the run's
    watch.at_rest()
