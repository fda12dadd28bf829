"""Sebulba's programs, compiled for TPUs or GPUs that this machine need not have."""

from functools import partial
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from podracer import parallel
from podracer.agent import Agent
from podracer.plan import compiled, report, slices
from podracer.training import memory
from sebulba import actor, dynamic_actor
from sebulba.cores import Cores, split
from sebulba.learner import Learner
from sebulba.starting import check_splits


class Programs(NamedTuple):
    """All programs of a run."""

    begin: compiled.Program  # the learner's state
    learn: compiled.Program  # from a trajectory of every host
    start: compiled.Program  # an actor's unroll
    step: compiled.Program  # one decision of an actor thread
    finish: compiled.Program  # its trajectory, split into the learner cores' parts


def programs(
    agent: Agent,
    timestep: dm_env.TimeStep,
    cores: Cores,
    *,
    parts: int,
    unroll_length: int,
    updates_per_trajectory: int = 1,
    dynamic: bool = False,
) -> Programs:
    """The programs of `sebulba.train` with these arguments, where all hosts are alike.

    Args:
      agent: any agent.
      timestep: shapes [B, ...] of an actor thread's timesteps.
      cores: the actors of a host, and the learners of all hosts.
      parts: number of learner cores of a host, which share its trajectories.
      unroll_length, updates_per_trajectory: as for `sebulba.train`.
      dynamic: whether environments answer asynchronously.

    Raises UserError as `sebulba.train` does, `compiled.Refused` and `compiled.DoesNotFit`.
    """
    batch_size = timestep.reward.size
    check_splits(batch_size, parts * updates_per_trajectory)
    key = jax.eval_shape(jax.random.key, 0)
    mesh = parallel.mesh_of(cores.learners)
    learner = Learner(agent, mesh, updates_per_trajectory)
    begin = compiled.compile("learner's start", learner.programs.start, key)
    state, params = begin.results

    made = (dynamic_actor if dynamic else actor).make_programs(
        agent, unroll_length, parts
    )
    acting, key = compiled.placed((params, key), parallel.SHARED, cores.actors[:1])
    start = compiled.compile("actor's start", made.start, acting, key, timestep)
    before, unroll = start.results
    keys = compiled.compile("actor's keys", made.keys, before).results
    which = (jax.ShapeDtypeStruct((batch_size,), jnp.int32),) if dynamic else ()
    step = compiled.compile(
        "actor's step", made.step, acting, keys, unroll, timestep, *which
    )
    finish = compiled.compile(
        "actor's trajectory", made.finish, before, unroll, timestep
    )

    part = finish.results[1][0]
    nothing = compiled.compile(
        "learner's tally", learner.programs.make_empty_tally(state, part)
    )
    trajectory = compiled.placed(part, actor.LAYOUT, cores.learners)
    learn = compiled.compile(
        "learner", learner.programs.learn, state, nothing.results, trajectory
    )
    return Programs(begin, learn, start, step, finish)


def held(made: Programs, threads: int) -> tuple[int, int]:
    """Bytes that an actor core and a learner core hold during a run, approximately.

    Each of the core's `threads` has an unfinished unroll, a finished trajectory and one in
    the queue; new parameters arrive beside the old. The learner's next
    trajectory may arrive while it learns.
    """
    unroll, trajectory = made.start.memory.results, made.finish.memory.results
    params, part = map(
        memory.size_of, (made.begin.results[1], made.finish.results[1][0])
    )
    works = max(x.memory.peak - x.memory.arguments for x in (made.step, made.finish))
    acts = threads * (unroll + 2 * trajectory) + 2 * params + max(0, works)
    return acts, made.learn.memory.peak + part


def describe(
    slice: slices.Slice,
    agent: Agent,
    example: dm_env.TimeStep,
    dynamic: bool,
    config: Any,
) -> None:
    """Prints the compiler's report on a run; `config` is of `sebulba train`.

    `example` is a timestep of one environment [1, ...]. Raises UserError where the run
    could not start on that slice, and says what could.
    """
    hosts = [
        split(cores, config.actor_cores, config.learner_cores, config.cores)
        for cores in slice.hosts
    ]
    host, count, threads = hosts[0], len(hosts), config.threads_per_core
    print(f"each host has {host}", flush=True)
    learners = [core for host in hosts for core in host.learners]
    seen = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example.observation
    )
    kept = memory.replayed(agent, seen, config)
    for line in kept.planned(slice.memory, len(learners)):
        print(line)

    def build(learners: list[jax.Device], batch_size: int) -> Programs:
        made = programs(
            agent,
            jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype),
                example,
            ),
            Cores(host.actors, learners),
            parts=len(host.learners),
            unroll_length=config.unroll_length,
            updates_per_trajectory=config.updates_per_trajectory,
            dynamic=dynamic,
        )
        needs = held(made, threads)
        needs = [sum(needs)] if host.actors == host.learners else needs
        if max(needs) > slice.memory:
            raise compiled.DoesNotFit("what a core holds", max(needs), slice.memory)
        return made

    unit = len(host.learners) * config.updates_per_trajectory
    try:
        made = compiled.fitting(partial(build, learners), config.batch_size, unit)
    except compiled.Refused:
        if len(learners) == len(slice.cores):
            raise
        print(
            f"learner: compiled as if all {len(slice.cores)} cores of the slice learned, "
            f"each with the share of the {len(learners)}: the compiler rejects such a part "
            "of it"
        )
        with parallel.planned_for(len(learners)):
            made = compiled.fitting(
                partial(build, slice.cores), config.batch_size, unit
            )
    acts, learns = map(compiled.size, held(made, threads))
    print(
        f"an actor core holds about {acts} ({threads} threads), a learner core {learns}"
    )
    for program in (made.begin, made.start, made.finish):
        print(report.line(program))
    steps = count * config.batch_size
    decisions = steps * len(host.actors)
    print("\n".join(report.report(made.step, slice, "a decision", decisions)))
    updates = config.updates_per_trajectory
    steps = steps * config.unroll_length // updates
    print("\n".join(report.report(made.learn, slice, "an update", steps, updates)))
