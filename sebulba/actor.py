"""An actor: a thread that steps host environments, and a core that decides for them."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from podracer import parallel
from podracer.agent import Agent, Key, Trajectory, with_last
from podracer.metrics import episodes
from podracer.training.actor_checks import check_step
from sebulba.host_environments import checking, protocol
from sebulba.transport import Closed, Handed, ParameterServer, TrajectoryQueue

LAYOUT = Trajectory(parallel.SEQUENCE, parallel.SEQUENCE, parallel.BATCH)
STOP_SECONDS = 5.0  # for all threads to end


class Before(NamedTuple):
    """What an actor has at row 0 of an unroll; steps leave it as it is."""

    actor_state: Any  # [B, ...]
    episodes: episodes.Episodes  # [B]
    key: Key  # never changes; all random numbers derive from it and `steps`
    steps: jax.Array  # uint32 [], since the actor's start
    timestep: dm_env.TimeStep  # [B, ...]


class Unroll(NamedTuple):
    """An unfinished trajectory on the actor's core, written in place row by row."""

    timesteps: dm_env.TimeStep  # [T, B, ...] rows before `row` are filled
    outputs: Any  # [T, B, ...] likewise
    row: jax.Array  # uint32 []; [B] where environments do not step together
    actor_state: Any  # [B, ...] before `row`


class Snapshot(NamedTuple):
    """All that an actor resumes from, taken between two trajectories: `Before`, and more."""

    actor_state: Any
    episodes: episodes.Episodes
    key: Key
    steps: jax.Array
    timestep: dm_env.TimeStep
    environment: Any


class Programs(NamedTuple):
    """What runs on an actor core: compiled once per core, for all its threads.

    They take a host's arrays as they are, which is faster than `jax.device_put`; an array
    that a step need not take is kept out of it, because each costs microseconds.
    """

    # (params, key, timestep [B, ...]) -> (Before, Unroll)
    start: Callable[..., tuple[Before, Unroll]]
    # (before) -> [T, B] keys for the decisions of an unroll
    keys: Callable[[Before], Key]
    # (params, keys, unroll, timestep) -> (unroll, action): decides, and stores the decision
    step: Callable[..., tuple[Unroll, jax.Array]]
    # (before, unroll, timestep) -> ((Before, Unroll) of the next trajectory, Trajectory
    # parts, Sums of finished episodes)
    finish: Callable[..., tuple[tuple[Before, Unroll], list[Trajectory], episodes.Sums]]


def make_programs(
    agent: Agent, unroll_length: int, parts: int, first: int = 0
) -> Programs:
    """The programs; `finish` splits a trajectory along its batch into `parts`.

    `first` is the number of environments on the hosts before this one.
    """
    # traced once for both programs that use it
    decide = jax.jit(agent.actor_step, inline=True)

    def start(params, key, timestep):
        batch_size = timestep.reward.size
        actor_state = agent.initial_actor_state(batch_size)
        keys = jnp.broadcast_to(key, batch_size)
        after, output = jax.eval_shape(decide, keys, params, actor_state, timestep)
        check_step(after, output, actor_state, batch_size)
        timesteps, outputs = jax.tree.map(
            lambda x: jnp.zeros((unroll_length, *x.shape), x.dtype),
            (timestep, output),
        )
        counted, zero = episodes.initial_state(batch_size), jnp.uint32(0)
        before = Before(actor_state, counted, key, zero, timestep)
        return before, Unroll(timesteps, outputs, zero, actor_state)

    def keys(before):
        """Each environment has its own, whatever others are in its batch or host."""
        steps = before.steps + jnp.arange(unroll_length, dtype=before.steps.dtype)
        numbers = first + jnp.arange(before.timestep.reward.size)
        of_steps = parallel.fold_each(before.key, steps)
        return jax.vmap(parallel.fold_each, in_axes=(0, None))(of_steps, numbers)

    def step(params, keys, unroll, timestep):
        row = jax.lax.dynamic_index_in_dim(keys, unroll.row, keepdims=False)
        actor_state, output = decide(row, params, unroll.actor_state, timestep)
        timesteps, outputs = jax.tree.map(
            lambda rows, x: jax.lax.dynamic_update_index_in_dim(rows, x, unroll.row, 0),
            (unroll.timesteps, unroll.outputs),
            (timestep, output),
        )
        unroll = Unroll(timesteps, outputs, unroll.row + 1, actor_state)
        return unroll, output.action

    def finish(before, unroll, timestep):
        timesteps = with_last(unroll.timesteps, timestep)
        trajectory = Trajectory(timesteps, unroll.outputs, before.actor_state)
        counted, sums = episodes.collect(
            episodes.steps(before.episodes, unroll.timesteps)
        )
        # The last row is also the next trajectory's first: it is transferred once.
        last = jax.tree.map(lambda x: x[-1], timesteps)
        steps = before.steps + unroll_length
        before = Before(unroll.actor_state, counted, before.key, steps, last)
        unroll = unroll._replace(row=jnp.zeros_like(unroll.row))
        return (before, unroll), parallel.split(trajectory, LAYOUT, parts), sums

    return Programs(
        jax.jit(start),
        jax.jit(keys),
        jax.jit(step, donate_argnums=2),
        jax.jit(finish, donate_argnums=(0, 1)),
    )


class Actor(threading.Thread):
    """Acts with the newest parameters in one batch of environments until the queue closes.

    An exception closes the queue, and the learner raises it.
    """

    may_hang = True  # in a simulator; `podracer.command.exits` then ends the process

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
        self._check = protocol.timestep_checker(environment)
        self._action_spec = environment.action_spec()
        self._check_action = checking.action_checker(
            type(environment).__name__, self._action_spec, (environment.batch_size,)
        )
        self._programs, self._unroll_length, self._key = programs, unroll_length, key
        self._server, self._queue = server, queue
        self._now: tuple[Before, Unroll] | None = None  # set by `begin`
        self.steps_per_trajectory = environment.batch_size * unroll_length

    def begin(self) -> None:
        """Starts new episodes and an empty unroll; its randomness depends on the version."""
        timestep = self._environment.reset()
        self._check(timestep)
        params, version = self._server.latest(self._device)
        key = jax.device_put(jax.random.fold_in(self._key, version), self._device)
        self._now = self._programs.start(params, key, timestep)

    def snapshot(self) -> Snapshot:
        """A copy of the actor's state; call it between two trajectories only."""
        inner = self._environment.snapshot()
        protocol.check_snapshot(type(self._environment).__name__, inner)
        snapshot = Snapshot(*self._now[0], inner)
        return jax.device_put(snapshot, self._device, may_alias=False)

    def part(self) -> Trajectory:
        """Shapes of a learner core's part of a trajectory; call it after `begin`."""
        before, unroll = self._now
        finish = self._programs.finish
        return jax.eval_shape(finish, before, unroll, before.timestep)[1][0]

    def restore(self, snapshot: Snapshot) -> None:
        """Resumes from a snapshot; call it right after `begin`."""
        snapshot = jax.device_put(snapshot, self._device, may_alias=False)
        self._environment.restore(snapshot.environment)
        before = Before(*snapshot[:-1])
        unroll = self._now[1]._replace(
            actor_state=jax.tree.map(jnp.copy, snapshot.actor_state)
        )
        self._now = before, unroll

    def run(self) -> None:
        self._queue.stepped()  # it has as long for its first step as for any other
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
            parts, sums, versions = self._trajectory()
            games = self._environment.finished_games()
            lost = self._environment.lost_episodes()
            self._queue.put(number, Handed(parts, sums, games, lost, versions))

    def _trajectory(self) -> tuple[list[Trajectory], episodes.Sums, np.ndarray]:
        """Acts for an unroll: (parts, finished episodes, parameter version of each step)."""
        before, unroll = self._now
        unroll, timestep, versions = self._fill(before, unroll)
        self._now, parts, sums = self._programs.finish(before, unroll, timestep)
        return parts, sums, versions

    def _fill(self, before: Before, unroll: Unroll):
        """Fills all rows: (unroll, the timestep after them, parameter version of each)."""
        timestep, keys, versions = before.timestep, self._programs.keys(before), []
        for _ in range(self._unroll_length):
            params, version = self._server.latest(self._device)
            unroll, action = self._programs.step(params, keys, unroll, timestep)
            action = jax.tree.map(np.asarray, action)
            self._check_action(action)
            action = protocol.as_declared(self._action_spec, action)
            timestep = self._environment.step(action)
            self._check(timestep)
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
