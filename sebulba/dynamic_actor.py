"""Dynamic batching: an actor that decides for whichever environments are ready.

As in TorchBeast (arXiv:1910.03552, section 3.2). Environments fill their rows of an unroll
independently; a trajectory is finished when each of them has filled all of its rows.
"""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Agent
from sebulba import actor
from sebulba.actor import Programs, Unroll, decide
from sebulba.host_environments.environment import stack


def make_programs(
    agent: Agent, unroll_length: int, parts: int, first: int = 0
) -> Programs:
    """As `actor.make_programs`, but a step is (params, unroll, timestep [M], which [M]).

    `which` [M] int32 are the numbers of the environments; any beyond the last is padding.
    """
    start_together, _, finish = actor.make_programs(agent, unroll_length, parts, first)

    def start(params, key, timestep):
        unroll = start_together(params, key, timestep)
        return unroll._replace(row=jnp.zeros(timestep.reward.size, jnp.int32))

    def step(params, unroll, timestep, which):
        def of(x):  # the part of these environments
            return x.at[which].get(mode="clip")

        def put(x, new):
            return x.at[which].set(new, mode="drop")

        actor_state, output = decide(
            agent,
            params,
            unroll.key,
            unroll.steps,
            jax.tree.map(of, unroll.actor_state),
            timestep,
            first,
        )
        row = of(unroll.row)
        timesteps, outputs = jax.tree.map(
            lambda rows, x: rows.at[row, which].set(x, mode="drop"),
            (unroll.timesteps, unroll.outputs),
            (timestep, output),
        )
        unroll = unroll._replace(
            timesteps=timesteps,
            outputs=outputs,
            row=put(unroll.row, row + 1),
            actor_state=jax.tree.map(put, unroll.actor_state, actor_state),
            steps=unroll.steps + 1,
        )
        return unroll, output.action

    return Programs(jax.jit(start), jax.jit(step, donate_argnums=1), finish)


class Actor(actor.Actor):
    """Decides for those environments that are ready, while the others still step."""

    def _fill(self, unroll: Unroll, timestep: dm_env.TimeStep):
        size, length = self._environment.batch_size, self._unroll_length
        rows, versions = np.zeros(size, int), np.zeros((length, size), int)
        which, done = np.arange(size), {}
        while True:
            params, version = self._server.latest(self._device)
            versions[rows[which], which] = version
            rows[which] += 1
            unroll, action = self._programs.step(
                params, unroll, *padded(timestep, which, size)
            )
            self._environment.send(np.asarray(action)[: len(which)], which)
            ready = {}
            while not ready:
                if len(done) == size:
                    last = stack([done[i] for i in range(size)])
                    return unroll, last, versions
                for i, arrived in self._environment.receive():
                    self._queue.stepped()
                    (ready if rows[i] < length else done)[i] = arrived
            which, timestep = np.array([*ready]), stack([*ready.values()])


def padded(timestep: dm_env.TimeStep, which: np.ndarray, size: int):
    """Both, padded to a power of two (or `size`): few sizes mean few compilations."""
    missing = min(size, 1 << (len(which) - 1).bit_length()) - len(which)
    if missing == 0:
        return timestep, which.astype(np.int32)
    which = np.append(which, np.full(missing, size)).astype(np.int32)
    return jax.tree.map(
        lambda x: np.concatenate([x, np.repeat(x[-1:], missing, 0)]), timestep
    ), which
