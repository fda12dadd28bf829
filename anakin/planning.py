"""Anakin's programs, compiled for TPUs or GPUs that this machine need not have."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from anakin import adaptation, meta_gradient, population, training
from envs_jax.environment import Environment
from podracer import parallel
from podracer.agent import Agent
from podracer.errors import check_range
from podracer.plan import compiled, report, slices
from podracer.runs import members
from podracer.training import memory


def describe(
    slice: slices.Slice,
    make_agent: Callable[[Mapping[str, Any]], Agent],
    environment: Environment,
    config: Any,
) -> None:
    """Prints the compiler's report on a run; `config` is of `anakin train`.

    Raises UserError where the run could not start on that slice, and says what could.
    """
    runs = members.choose(config) if config.together else ()
    batch_size, count, cores = config.batch_size, len(runs), len(slice.cores)
    most = len(slice.hosts[0])
    each = most if config.cores is None else config.cores
    check_range("cores", each, 1, most)
    used = len(slice.hosts) * each
    if runs:
        population.check_shares(count, used)
    else:
        training.check(environment, batch_size, config.unroll_length, 1, used)
    agent = make_agent({})
    replay = memory.replayed(agent, environment.observation_spec(), config)
    for line in replay.planned(slice.memory, used, count or 1):
        print(line)
    if used < cores:
        # libtpu 0.0.42 accepts few parts of a slice, and crashes on others.
        print(f"compiled as if all {cores} cores had the share of the {used}")
    options = {"unroll_length": config.unroll_length, "reset_pool": config.reset_pool}
    adapt = population.rule_of(config)

    def build(batch_size: int) -> list[compiled.Program]:
        if runs:
            made = programs_together(
                make_agent,
                environment,
                slice.cores,
                runs=count // used * cores,
                hyperparameters=(*runs[0].hyperparameters,),
                adapt=adapt,
                batch_size=batch_size,
                **options,
            )
        else:
            batch_size = batch_size // used * cores
            made = programs(
                agent, environment, slice.cores, batch_size=batch_size, **options
            )
        for program in made:  # a GPU's compiler does not look at what is free
            if program.memory.peak > slice.memory:
                needed = program.memory.peak
                raise compiled.DoesNotFit(program.name, needed, slice.memory)
        return made

    with parallel.planned_for(used):
        start, call = compiled.fitting(build, batch_size, 1 if runs else used)
    print(report.line(start))
    steps = batch_size * config.unroll_length * (count or 1)
    print("\n".join(report.report(call, slice, "an update", steps)))
    if adapt:
        print(copies(agent, count, used, adapt[1].interval))


def copies(agent: Agent, members: int, cores: int, interval: int) -> str:
    """One line for a plan: what the copies of an adaptation cost a core."""
    key = jax.eval_shape(jax.random.key, 0)
    learner = jax.eval_shape(agent.initial_learner_state, key).shared
    each = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(learner))
    others = each * members * (cores - 1) // cores
    return (
        f"adaptation: every {interval:,} updates, of {members} learners of "
        f"{compiled.size(each)} each; a core receives {compiled.size(others)}"
    )


def programs(
    agent: Agent,
    environment: Environment,
    cores: list[jax.Device],
    *,
    batch_size: int,
    unroll_length: int,
    reset_pool: int | None = None,
) -> list[compiled.Program]:
    """The programs of `anakin.train` with these arguments: its start and its call.

    Raises UserError as `anakin.train` does, and `compiled.DoesNotFit`.
    """
    mesh = parallel.mesh_of(cores)
    training.check(environment, batch_size, unroll_length, 1, mesh.size)
    made = training.make_programs(agent, environment, mesh, unroll_length, reset_pool)
    return _compiled(made, batch_size, jax.eval_shape(jax.random.key, 0))


def programs_together(
    make_agent: Callable[[Mapping[str, jax.Array]], Agent],
    environment: Environment,
    cores: list[jax.Device],
    *,
    runs: int,
    hyperparameters: tuple[str, ...],
    batch_size: int,
    unroll_length: int,
    reset_pool: int | None = None,
    adapt: tuple[adaptation.Rule, adaptation.Updates] | None = None,
) -> list[compiled.Program]:
    """The same of `population.train`, for `runs` that differ in these hyperparameters; for
    `adapt` see `population.make_programs`."""
    mesh = parallel.mesh_of(cores)
    population.check_shares(runs, mesh.size)
    training.check(environment, batch_size, unroll_length, 1, 1)
    made = population.make_programs(
        make_agent, environment, mesh, unroll_length, reset_pool, adapt
    )
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), runs))
    each = jax.ShapeDtypeStruct((runs,), jnp.float32)
    return _compiled(made, batch_size, keys, dict.fromkeys(hyperparameters, each))


def meta_programs(
    meta: meta_gradient.Meta, config: meta_gradient.Config, cores: list[jax.Device]
) -> list[compiled.Program]:
    """The same of `meta_gradient.train`.

    Raises UserError where the cores cannot share the lifetimes equally, and
    `compiled.DoesNotFit`.
    """
    mesh = parallel.mesh_of(cores)
    population.check_shares(config.lifetimes, mesh.size, "lifetimes")
    made = meta_gradient.make_programs(meta, config, mesh)
    return _compiled(made, config.lifetimes, jax.eval_shape(jax.random.key, 0))


def _compiled(
    made: training.Programs, batch_size: int, *arguments: Any
) -> list[compiled.Program]:
    """The programs, `start` for these arguments and the index of a batch."""
    index = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    start = compiled.compile("start", made.start, *arguments, index)
    updates, report = (jax.ShapeDtypeStruct((), x) for x in (jnp.uint32, jnp.bool_))
    call = compiled.compile("call", made.call, start.results, updates, report)
    return [start, call]
