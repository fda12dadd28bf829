"""Dynamic batching: an actor that decides for whichever environments are ready.

As in TorchBeast (arXiv:1910.03552, section 3.2). Environments fill their rows of an unroll
independently; a trajectory is finished when each of them has filled all of its rows.
"""

from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Agent
from sebulba import actor
from sebulba.actor import ActorCore, Fill, FullUnroll, Programs, Unroll, UnrollStart
from sebulba.host_environments.environment import stack


def make_programs(
    agent: Agent, unroll_length: int, parts: int, first: int = 0
) -> Programs:
    """As `actor.make_programs`, but a step also takes `which` [M]: (params, keys, unroll,
    timestep [M], which).

    `which` [M] int32 are the numbers of the environments; any beyond the last is padding.
    """
    together = actor.make_programs(agent, unroll_length, parts, first)

    def start(params, key, timestep):
        unroll_start, unroll = together.start(params, key, timestep)
        row = jnp.zeros(timestep.reward.size, unroll.row.dtype)
        return unroll_start, unroll._replace(row=row)

    def step(params, keys, unroll, timestep, which):
        def of(x):  # the part of these environments
            return x.at[which].get(mode="clip")

        def put(x, new):
            return x.at[which].set(new, mode="drop")

        row = of(unroll.row)
        actor_state, output = agent.actor_step(
            keys.at[row, which].get(mode="clip"),
            params,
            jax.tree.map(of, unroll.actor_state),
            timestep,
        )
        timesteps, outputs = jax.tree.map(
            lambda rows, x: rows.at[row, which].set(x, mode="drop"),
            (unroll.timesteps, unroll.outputs),
            (timestep, output),
        )
        unroll = Unroll(
            timesteps,
            outputs,
            put(unroll.row, row + 1),
            jax.tree.map(put, unroll.actor_state, actor_state),
        )
        return unroll, output.action

    return together._replace(start=jax.jit(start), step=jax.jit(step, donate_argnums=2))


def make_fill(environment: Any, core: ActorCore) -> Fill:
    """Decides for those environments that are ready, while the others still step."""
    size, length, programs = environment.batch_size, core.unroll_length, core.programs

    def fill(start: UnrollStart, unroll: Unroll) -> tuple[FullUnroll, np.ndarray]:
        rows, versions = np.zeros(size, int), np.zeros((length, size), int)
        which, timestep, done = np.arange(size), start.timestep, {}
        keys = programs.keys(start)
        while len(done) < size:
            params, version = core.newest()
            versions[rows[which], which] = version
            rows[which] += 1
            unroll, action = programs.step(
                params, keys, unroll, *padded(timestep, which, size)
            )
            environment.send(np.asarray(action)[: len(which)], which)
            ready = {}
            while not ready and len(done) < size:
                for i, answer in environment.receive():
                    core.stepped()
                    (ready if rows[i] < length else done)[i] = answer
            if ready:
                which, timestep = np.array([*ready]), stack([*ready.values()])
        last = stack([done[i] for i in range(size)])
        return programs.finish(start, unroll, last), versions

    return fill


def padded(timestep: dm_env.TimeStep, which: np.ndarray, size: int):
    """Both, padded to a power of two (or `size`): few sizes mean few compilations."""
    missing = min(size, 1 << (len(which) - 1).bit_length()) - len(which)
    if missing == 0:
        return timestep, which.astype(np.int32)
    which = np.append(which, np.full(missing, size)).astype(np.int32)
    return jax.tree.map(
        lambda x: np.concatenate([x, np.repeat(x[-1:], missing, 0)]), timestep
    ), which
