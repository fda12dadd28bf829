"""An actor: a thread that fills unrolls, and a core that decides for its environments."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from podracer import parallel
from podracer.agent import Agent, Key, Trajectory, with_last
from podracer.metrics import episodes
from podracer.training.agent_checks import check_step
from sebulba.host_environments import protocol
from sebulba.host_environments.environment import HostEnvironment
from sebulba.transport import Closed, Delivery, TrajectoryQueue

LAYOUT = Trajectory(parallel.SEQUENCE, parallel.SEQUENCE, parallel.BATCH)
STOP_SECONDS = 5.0  # for all threads to end


class UnrollStart(NamedTuple):
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


class FullUnroll(NamedTuple):
    """What an actor has when all rows are filled."""

    next: tuple[UnrollStart, Unroll]
    parts: list[Trajectory]  # of the trajectory, one for each learner core
    episodes: episodes.Sums  # of those that finished in it


class Snapshot(NamedTuple):
    """All that an actor resumes from, taken between two trajectories."""

    actor_state: Any  # as in `UnrollStart`, as are the next four
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

    # (params, key, timestep [B, ...]) -> (UnrollStart, Unroll)
    start: Callable[..., tuple[UnrollStart, Unroll]]
    # (start) -> [T, B] keys for the decisions of an unroll
    keys: Callable[[UnrollStart], Key]
    # (params, keys, unroll, timestep) -> (unroll, action): decides, and stores the decision
    step: Callable[..., tuple[Unroll, jax.Array]]
    # (start, unroll, the timestep after it) -> FullUnroll
    finish: Callable[..., FullUnroll]


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
        counts, zero = episodes.initial_state(batch_size), jnp.uint32(0)
        unroll = Unroll(timesteps, outputs, zero, actor_state)
        return UnrollStart(actor_state, counts, key, zero, timestep), unroll

    def keys(start):
        """Each environment has its own, whatever others are in its batch or host."""
        steps = start.steps + jnp.arange(unroll_length, dtype=start.steps.dtype)
        numbers = first + jnp.arange(start.timestep.reward.size)
        of_steps = parallel.fold_each(start.key, steps)
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

    def finish(start, unroll, timestep):
        timesteps = with_last(unroll.timesteps, timestep)
        trajectory = Trajectory(timesteps, unroll.outputs, start.actor_state)
        counts, sums = episodes.collect(
            episodes.steps(start.episodes, unroll.timesteps)
        )
        # The last row is also the next trajectory's first: it is transferred once.
        last = jax.tree.map(lambda x: x[-1], timesteps)
        steps = start.steps + unroll_length
        start = UnrollStart(unroll.actor_state, counts, start.key, steps, last)
        unroll = unroll._replace(row=jnp.zeros_like(unroll.row))
        trajectories = parallel.split(trajectory, LAYOUT, parts)
        return FullUnroll((start, unroll), trajectories, sums)

    return Programs(
        jax.jit(start),
        jax.jit(keys),
        jax.jit(step, donate_argnums=2),
        jax.jit(finish, donate_argnums=(0, 1)),
    )


class ActorCore(NamedTuple):
    """An actor core, as one of its threads sees it."""

    device: jax.Device
    programs: Programs
    unroll_length: int  # T
    newest: Callable[[], tuple[Any, int]]  # () -> (newest parameters, their version)
    stepped: Callable[[], None]  # called after each step of environments


# Fills an unroll from its start: (UnrollStart, Unroll) -> (FullUnroll, the version [T] or
# [T, B] of the parameters that decided each step). An actor is such a function.
Fill = Callable[[UnrollStart, Unroll], tuple[FullUnroll, np.ndarray]]


def make_fill(step: Callable[[np.ndarray], dm_env.TimeStep], core: ActorCore) -> Fill:
    """Fills row after row: `step` steps all environments of the batch together."""

    def fill(start: UnrollStart, unroll: Unroll) -> tuple[FullUnroll, np.ndarray]:
        timestep, keys, versions = start.timestep, core.programs.keys(start), []
        for _ in range(core.unroll_length):
            params, version = core.newest()
            unroll, action = core.programs.step(params, keys, unroll, timestep)
            timestep = step(jax.tree.map(np.asarray, action))
            core.stepped()
            versions.append(version)
        return core.programs.finish(start, unroll, timestep), np.array(versions)

    return fill


@final
class Actor(threading.Thread):
    """Fills unrolls until the queue closes, which gets the trajectories.

    `reset` is the environment's, which the thread closes; all randomness derives from `key`.
    An exception closes the queue, and the learner raises it.
    """

    may_hang = True  # in a simulator; `podracer.command.exits` then ends the process

    def __init__(
        self,
        name: str,
        environment: HostEnvironment,
        reset: Callable[[], dm_env.TimeStep],
        fill: Fill,
        core: ActorCore,
        key: Key,
        queue: TrajectoryQueue,
    ):
        super().__init__(name=name, daemon=True)  # a hanging simulator blocks no exit
        self.environment, self._reset, self._fill = environment, reset, fill
        self._core, self._key, self._queue = core, key, queue
        self._now: tuple[UnrollStart, Unroll] | None = None  # set by `begin`

    def begin(self) -> None:
        """Starts new episodes and an empty unroll; its randomness depends on the version."""
        timestep = self._reset()
        params, version = self._core.newest()
        key = jax.device_put(jax.random.fold_in(self._key, version), self._core.device)
        self._now = self._core.programs.start(params, key, timestep)

    def part(self) -> Trajectory:
        """Shapes of a learner core's part of a trajectory; call it after `begin`."""
        start, unroll = self._now
        finish = self._core.programs.finish
        return jax.eval_shape(finish, start, unroll, start.timestep).parts[0]

    def snapshot(self) -> Snapshot:
        """A copy of the actor's state; call it between two trajectories only."""
        inner = self.environment.snapshot()
        protocol.check_snapshot(type(self.environment).__name__, inner)
        snapshot = Snapshot(*self._now[0], inner)
        return jax.device_put(snapshot, self._core.device, may_alias=False)

    def restore(self, snapshot: Snapshot) -> None:
        """Resumes from a snapshot; call it right after `begin`."""
        snapshot = jax.device_put(snapshot, self._core.device, may_alias=False)
        self.environment.restore(snapshot.environment)
        actor_state = jax.tree.map(jnp.copy, snapshot.actor_state)
        unroll = self._now[1]._replace(actor_state=actor_state)
        self._now = UnrollStart(*snapshot[:-1]), unroll

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
            self.environment.close()

    def _act(self) -> None:
        if self._now is None:
            self.begin()
        while True:
            number = self._queue.begin()
            (self._now, parts, sums), versions = self._fill(*self._now)
            games = self.environment.finished_games()
            lost = self.environment.lost_episodes()
            self._queue.put(number, Delivery(parts, sums, games, lost, versions))


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
