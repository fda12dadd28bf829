"""What `anakin train` and `anakin meta-train` need of memory at least, by their programs.

A run checks them before it starts (`anakin.reports`); this finds out which field was too large.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from anakin import meta_gradient, population, training
from envs_jax.environment import Environment
from podracer import parallel
from podracer.agent import Agent
from podracer.runs import members
from podracer.training import memory


def of_run(
    make_agent: Callable[[Mapping[str, Any]], Agent],
    environment: Environment,
    config: Any,
) -> int:
    """Bytes of the programs of `anakin train` with this configuration, which are traced.

    Raises UserError where they cannot be.
    """
    mesh, key = parallel.make_mesh(config.cores), jax.eval_shape(jax.random.key, 0)
    options = config.unroll_length, config.reset_pool
    if not config.together:
        make = training.make_programs
        programs = make(make_agent({}), environment, mesh, *options)
        return of_programs(programs, key, number=config.batch_size)
    runs = members.choose(config)
    population.check_shares(len(runs), mesh.size)
    options += (population.rule_of(config),)
    programs = population.make_programs(make_agent, environment, mesh, *options)
    keys = jax.ShapeDtypeStruct((len(runs),), key.dtype)
    each = jax.ShapeDtypeStruct((len(runs),), jnp.float32)
    values = dict.fromkeys(runs[0].hyperparameters, each)
    return of_programs(programs, keys, values, number=config.batch_size)


def of_meta_train(
    meta: meta_gradient.Meta, config: meta_gradient.Config, cores: Any
) -> int:
    """The same of `anakin meta-train`."""
    mesh = parallel.make_mesh(cores)
    population.check_shares(config.lifetimes, mesh.size, "lifetimes")
    programs = meta_gradient.make_programs(meta, config, mesh)
    key = jax.eval_shape(jax.random.key, 0)
    return of_programs(programs, key, number=config.lifetimes)


def of_programs(programs: training.Programs, *arguments: Any, number: int) -> int:
    """Bytes of the start and the call of a run, of that many environments or lifetimes."""
    index = jax.ShapeDtypeStruct((number,), jnp.int32)
    first = memory.of_program(programs.start, *arguments, index)
    state = jax.eval_shape(programs.start, *arguments, index)
    call = memory.of_program(programs.call, state, jnp.uint32(1), jnp.bool_(True))
    return max(first, call)
