"""The learner: the same updates on every learner core, each from its part of a trajectory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from podracer import parallel
from podracer.agent import Agent, Key, LearnerState, Metrics, Trajectory
from podracer.metrics import tally
from podracer.training import memory
from podracer.training.agent_checks import checked_update
from sebulba.actor import LAYOUT as TRAJECTORY


class State(NamedTuple):
    """The whole state of a run; with the actors' only if it can resume bit for bit."""

    learner: LearnerState
    key: Key  # never changes; all random numbers derive from it and `updates`
    updates: jax.Array  # uint32 []
    actor: Any = ()  # a Snapshot of each host [hosts, ...], or ()
    counted: Any = ()  # since the last report: (Tally, each host's Sums), or ()


LAYOUT = State(
    learner=LearnerState(parallel.SHARED, parallel.LOCAL),
    key=parallel.SHARED,
    updates=parallel.SHARED,
    actor=parallel.OPTIONAL,
    counted=parallel.OPTIONAL,
)


class Programs(NamedTuple):
    """What runs on the learner cores, on all of them at once."""

    start: Callable  # (key) -> (State, actor_params)
    # (state, tally, trajectory) -> (state, tally, actor_params); reuses the memory of the
    # first two
    learn: Callable
    # (tally) -> ([means, failures], an empty tally); reuses its memory
    read: Callable
    params: Callable  # (state) -> actor_params
    # (state, shapes of a trajectory's part) -> a program: () -> an empty tally
    make_empty_tally: Callable


def make_programs(agent: Agent, mesh: Any, updates_per_trajectory: int) -> Programs:
    """The programs of a `Learner`."""
    # traced once for the shapes of its metrics and for learning
    update = jax.jit(make_update(agent), inline=True)

    def over_cores(function, inputs, outputs, donate=()):
        return parallel.over_cores(function, mesh, inputs, outputs, donate)

    def pieces(part: Trajectory) -> list[Trajectory]:
        return parallel.split(part, TRAJECTORY, updates_per_trajectory)

    def start(key: Key):
        learner_key, run_key = jax.random.split(key)
        learner = agent.initial_learner_state(learner_key)
        state = State(learner, run_key, jnp.uint32(0))
        return state, agent.actor_params(learner)

    def learn(state: State, counts: tally.Tally, part: Trajectory):
        def learn_piece(carry, piece: Trajectory):
            state, counts = carry
            learner, metrics = update(state, piece)
            state = State(learner, state.key, state.updates + 1)
            metrics = parallel.AVERAGE(tally.as_floats(metrics))
            return (state, tally.add(counts, metrics, state.updates)), None

        stacked = jax.tree.map(lambda *x: jnp.stack(x), *pieces(part))
        (state, counts), _ = jax.lax.scan(learn_piece, (state, counts), stacked)
        return state, counts, agent.actor_params(state.learner)

    def read(counts: tally.Tally):
        """Two arrays so as to be two transfers."""
        trees = counts.means, counts.failures
        arrays = [ravel_pytree(tree)[0] for tree in trees]
        return arrays, tally.initial_state(counts.means)

    def make_empty_tally(state: State, part: Trajectory) -> Callable[[], tally.Tally]:
        def empty_tally(state):
            piece, *_ = jax.eval_shape(pieces, part)
            return tally.initial_state(jax.eval_shape(update, state, piece)[1])

        shapes = jax.eval_shape(
            over_cores(empty_tally, (LAYOUT,), parallel.SHARED), state
        )
        return over_cores(
            lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
            (),
            parallel.SHARED,
        )

    shared = parallel.SHARED
    return Programs(
        over_cores(start, (shared,), (LAYOUT, shared)),
        over_cores(
            learn, (LAYOUT, shared, TRAJECTORY), (LAYOUT, shared, shared), donate=(0, 1)
        ),
        over_cores(read, (shared,), shared, donate=(0,)),
        over_cores(lambda state: agent.actor_params(state.learner), (LAYOUT,), shared),
        make_empty_tally,
    )


def make_update(agent: Agent) -> Callable:
    """(State, Trajectory) -> (LearnerState, Metrics): an update on a core."""

    def update(state: State, piece: Trajectory):
        key = parallel.core_key(jax.random.fold_in(state.key, state.updates))
        results = agent.learner_step(key, state.learner, piece)
        learner, metrics = checked_update(results, state.learner)
        return learner, tally.joined(metrics, tally.of_environment(piece.timesteps))

    return update


class Learner:
    """Owns the state on the learner cores, and learns from one trajectory at a time.

    Args:
      agent: any agent.
      mesh: of the learner cores of all hosts, which learn together.
      updates_per_trajectory: number of updates, each from an equal part of the batch, so
        that acting batches can be larger than learning batches (arXiv:2104.06272).
    """

    def __init__(self, agent: Agent, mesh: Any, updates_per_trajectory: int):
        self.programs = make_programs(agent, mesh, updates_per_trajectory)
        self._mesh, self.updates_per_trajectory = mesh, updates_per_trajectory
        self.tally: tally.Tally | None = None  # since the last `metrics`; see `expect`
        self.updates = 0  # since the start of the run

    def begin(self, key: Key) -> None:
        """Makes the state before the first update, with all randomness from `key`."""
        self.state, self.params = self.programs.start(key)

    def expect(self, part: Trajectory) -> None:
        """Prepares to count metrics, for trajectories with parts of these shapes."""
        self.tally = self.programs.make_empty_tally(self.state, part)()

    def learn(self, parts: list[Trajectory]) -> None:
        """Learns from a trajectory, one part per core; updates `state` and `params`."""
        if self.tally is None:
            self.expect(parts[0])
        trajectory = parallel.join(parts, TRAJECTORY, self._mesh)
        if self.updates == 0:
            memory.check_program(
                self.programs.learn, self.state, self.tally, trajectory
            )
        self.state, self.tally, self.params = self.programs.learn(
            self.state, self.tally, trajectory
        )
        self.updates += self.updates_per_trajectory

    def metrics(self) -> Metrics:
        """Means since the last call; FloatingPointError where one is not finite."""
        arrays, self.tally = self.programs.read(self.tally)
        means, failures = (
            _unraveled(x, self.tally.means) for x in parallel.on_host(arrays)
        )
        tally.stop_if_not_finite(failures)
        return tally.reported(means)

    def whole_state(self, snapshot: Any, sums: Any) -> State:
        """The state, with this host's snapshot of the actor and sums of the report, if any."""
        if not sums:
            return self.state
        actor, sums = parallel.by_host((snapshot, sums), self._mesh.local_devices)
        return self.state._replace(actor=actor, counted=(self.tally, sums))

    def restore(self, state: State) -> tuple[Any, Any]:
        """Resumes from a state; returns what `whole_state` had added, or (None, None)."""
        self.state = state._replace(actor=(), counted=())
        self.params = self.programs.params(self.state)
        self.updates = int(parallel.on_host(self.state.updates))
        if not state.counted:
            return None, None
        self.tally, sums = state.counted
        return parallel.of_host((state.actor, sums))


def _unraveled(elements: np.ndarray, shapes: Metrics) -> Metrics:
    """Metrics of these shapes, from all of their elements in one array."""
    leaves, structure = jax.tree.flatten(shapes)
    ends = np.cumsum([x.size for x in leaves])
    parts = np.split(elements, ends[:-1])
    return structure.unflatten(
        [part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)]
    )
