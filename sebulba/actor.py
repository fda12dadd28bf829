"""An actor: a thread that steps host environments, and a core that decides for them."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from podracer import parallel
from podracer.agent import Agent, Key, Trajectory, with_last
from podracer.metrics import episodes
from sebulba.transport import Closed, Handed, ParameterServer, TrajectoryQueue

LAYOUT = Trajectory(parallel.SEQUENCE, parallel.SEQUENCE, parallel.BATCH)
STOP_SECONDS = 5.0  # for all threads to end


class Unroll(NamedTuple):
    """An unfinished trajectory on the actor's core, written in place row by row."""

    timesteps: dm_env.TimeStep  # [T, B, ...] rows before `row` are filled
    outputs: Any  # [T, B, ...] likewise
    row: jax.Array  # int32 []; [B] where environments do not step together
    first_actor_state: Any  # [B, ...] before row 0
    actor_state: Any  # [B, ...] before `row`
    episodes: episodes.Episodes  # [B, ...] before row 0
    key: Key  # never changes; all random numbers derive from it and `steps`
    steps: jax.Array  # uint32 [], since the actor's start


class Snapshot(NamedTuple):
    """All that an actor resumes from, taken between two trajectories."""

    actor_state: Any  # [B, ...]
    episodes: episodes.Episodes  # [B, ...]
    key: Key
    steps: jax.Array  # uint32 []
    timestep: dm_env.TimeStep  # [B, ...]
    environment: Any


class Programs(NamedTuple):
    """What runs on an actor core: compiled once per core, for all its threads."""

    # (params, key, timestep [B, ...]) -> Unroll
    start: Callable[..., Unroll]
    # (params, unroll, timestep) -> (unroll, action): decides, and stores the decision
    step: Callable[..., tuple[Unroll, jax.Array]]
    # (unroll, timestep) -> (both, on the core, to go on from; Trajectory parts; Sums of
    # finished episodes)
    finish: Callable[..., tuple[Any, list[Trajectory], episodes.Sums]]


def decide(agent: Agent, params, key: Key, steps, actor_state, timestep, first=0):
    """The agent's decision for timesteps [B, ...], with a key for each environment.

    `first` is the first environment's number, counted over all hosts.
    """
    key = jax.random.fold_in(key, steps)
    numbers = first + jnp.arange(timestep.reward.size)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers)
    return agent.actor_step(keys, params, actor_state, timestep)


def make_programs(
    agent: Agent, unroll_length: int, parts: int, first: int = 0
) -> Programs:
    """The programs; `finish` splits a trajectory along its batch into `parts`.

    `first` is the number of environments on the hosts before this one.
    """
    # traced once for both programs that use it
    decided = jax.jit(partial(decide, agent, first=first), inline=True)

    def start(params, key, timestep):
        batch_size = timestep.reward.size
        steps = jnp.uint32(0)
        actor_state = agent.initial_actor_state(batch_size)
        shapes = jax.eval_shape(decided, params, key, steps, actor_state, timestep)
        timesteps, outputs = jax.tree.map(
            lambda x: jnp.zeros((unroll_length, *x.shape), x.dtype),
            (timestep, shapes[1]),
        )
        return Unroll(
            timesteps,
            outputs,
            jnp.int32(0),
            actor_state,
            actor_state,
            episodes.initial_state(batch_size),
            key,
            steps,
        )

    def step(params, unroll, timestep):
        actor_state, output = decided(
            params, unroll.key, unroll.steps, unroll.actor_state, timestep
        )
        timesteps, outputs = jax.tree.map(
            lambda rows, x: rows.at[unroll.row].set(x),
            (unroll.timesteps, unroll.outputs),
            (timestep, output),
        )
        unroll = unroll._replace(
            timesteps=timesteps,
            outputs=outputs,
            row=unroll.row + 1,
            actor_state=actor_state,
            steps=unroll.steps + 1,
        )
        return unroll, output.action

    def finish(unroll, timestep):
        timesteps = with_last(unroll.timesteps, timestep)
        trajectory = Trajectory(timesteps, unroll.outputs, unroll.first_actor_state)
        counted, sums = episodes.collect(
            episodes.steps(unroll.episodes, unroll.timesteps)
        )
        unroll = unroll._replace(
            row=jnp.zeros_like(unroll.row),
            first_actor_state=unroll.actor_state,
            episodes=counted,
        )
        # The last row is also the next trajectory's first: it is transferred once.
        last = jax.tree.map(lambda x: x[-1], timesteps)
        return (unroll, last), parallel.split(trajectory, LAYOUT, parts), sums

    return Programs(
        jax.jit(start),
        jax.jit(step, donate_argnums=1),
        jax.jit(finish, donate_argnums=0),
    )


class Actor(threading.Thread):
    """Acts with the newest parameters in one batch of environments until the queue closes.

    An exception closes the queue, and the learner raises it.
    """

    def __init__(
        self,
        name: str,
        environment: Any,
        device: jax.Device,
        programs: Programs,
        unroll_length: int,
        key: Key,
        server: ParameterServer,
        queue: TrajectoryQueue,
    ):
        super().__init__(name=name, daemon=True)  # a hanging simulator blocks no exit
        self._environment, self._device = environment, device
        self._programs, self._unroll_length, self._key = programs, unroll_length, key
        self._server, self._queue = server, queue
        self._now: tuple[Unroll, dm_env.TimeStep] | None = None  # set by `begin`
        self.steps_per_trajectory = environment.batch_size * unroll_length

    def begin(self) -> None:
        """Starts new episodes and an empty unroll; its randomness depends on the version."""
        timestep = self._environment.reset()
        params, version = self._server.latest(self._device)
        key = jax.device_put(jax.random.fold_in(self._key, version), self._device)
        self._now = self._programs.start(params, key, timestep), timestep

    def snapshot(self) -> Snapshot:
        """A copy of the actor's state; call it between two trajectories only."""
        unroll, timestep = self._now
        snapshot = Snapshot(
            unroll.actor_state,
            unroll.episodes,
            unroll.key,
            unroll.steps,
            timestep,
            self._environment.snapshot(),
        )
        return jax.device_put(snapshot, self._device, may_alias=False)

    def part(self) -> Trajectory:
        """Shapes of a learner core's part of a trajectory; call it after `begin`."""
        return jax.eval_shape(self._programs.finish, *self._now)[1][0]

    def restore(self, snapshot: Snapshot) -> None:
        """Resumes from a snapshot; call it right after `begin`."""
        snapshot = jax.device_put(snapshot, self._device, may_alias=False)
        self._environment.restore(snapshot.environment)
        unroll = self._now[0]._replace(
            first_actor_state=jax.tree.map(jnp.copy, snapshot.actor_state),
            actor_state=snapshot.actor_state,
            episodes=snapshot.episodes,
            key=snapshot.key,
            steps=snapshot.steps,
        )
        self._now = unroll, snapshot.timestep

    def run(self) -> None:
        try:
            self._act()
        except Closed:
            pass
        except Exception as error:  # noqa: BLE001 the learner raises it
            self._queue.close(error)
        except BaseException as error:  # noqa: BLE001 Ctrl-C reaches the main thread alone
            failed = RuntimeError(f"an environment raised {type(error).__name__}")
            self._queue.close(failed.with_traceback(error.__traceback__))
        finally:
            self._environment.close()

    def _act(self) -> None:
        if self._now is None:
            self.begin()
        while True:
            number = self._queue.begin()
            unroll, timestep, versions = self._fill(*self._now)
            # Programs take host arrays as arguments, which is faster than `device_put`.
            self._now, parts, sums = self._programs.finish(unroll, timestep)
            games = self._environment.finished_games()
            lost = self._environment.lost_episodes()
            self._queue.put(number, Handed(parts, sums, games, lost, versions))

    def _fill(self, unroll: Unroll, timestep: dm_env.TimeStep):
        """Fills all rows: (unroll, the timestep after them, parameter version of each)."""
        versions = []
        for _ in range(self._unroll_length):
            params, version = self._server.latest(self._device)
            unroll, action = self._programs.step(params, unroll, timestep)
            timestep = self._environment.step(np.asarray(action))
            self._queue.stepped()
            versions.append(version)
        return unroll, timestep, np.array(versions)


@contextlib.contextmanager
def running(actors: list[Actor], queue: TrajectoryQueue) -> Iterator[None]:
    """Actor threads that run while the block does, whatever ends it."""
    for thread in actors:
        thread.start()
    try:
        yield
    finally:
        queue.close()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in actors:
            thread.join(max(0.0, deadline - time.monotonic()))
        hanging = ", ".join(thread.name for thread in actors if thread.is_alive())
        if hanging:
            print(
                f"still in a step of their environments: {hanging}; they end with the "
                "process",
                file=sys.stderr,
            )
