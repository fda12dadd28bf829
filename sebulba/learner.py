"""The learner: the same updates on every learner core, each from its part of a trajectory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer import parallel
from podracer.agent import Agent, Key, LearnerState, Metrics, Trajectory
from podracer.metrics import tally
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


def make_update(agent: Agent) -> Callable:
    """(State, Trajectory) -> (LearnerState, Metrics): an update on a core."""

    def update(state: State, piece: Trajectory):
        key = parallel.core_key(jax.random.fold_in(state.key, state.updates))
        learner, metrics = agent.learner_step(key, state.learner, piece)
        return learner, tally.joined(metrics, tally.given(piece.timesteps))

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
        self._agent, self.updates_per_trajectory = agent, updates_per_trajectory
        self._mesh = mesh
        # traced once for the shapes of its metrics and for learning
        self._update = jax.jit(make_update(agent), inline=True)
        self.programs = Programs(
            start=self._over_cores(
                self._start_on_core,
                inputs=(parallel.SHARED,),
                outputs=(LAYOUT, parallel.SHARED),
            ),
            learn=self._over_cores(
                self._learn_on_core,
                inputs=(LAYOUT, parallel.SHARED, TRAJECTORY),
                outputs=(LAYOUT, parallel.SHARED, parallel.SHARED),
                donate=(0, 1),
            ),
            read=self._over_cores(
                self._read_on_core,
                inputs=(parallel.SHARED,),
                outputs=parallel.SHARED,
                donate=(0,),
            ),
        )
        self.tally: tally.Tally | None = None  # since the last `metrics`; see `expect`
        self.updates = 0  # since the start of the run

    def begin(self, key: Key) -> None:
        """Makes the state before the first update, with all randomness from `key`."""
        self.state, self.params = self.programs.start(key)

    def whole(self, actor: Any, sums: Any) -> State:
        """The state, with this host's snapshot of the actor and counts of the report, if any."""
        if not sums:
            return self.state
        actor, sums = parallel.by_host((actor, sums), self._mesh.local_devices)
        return self.state._replace(actor=actor, counted=(self.tally, sums))

    def restore(self, state: State) -> tuple[Any, Any]:
        """Resumes from another state; returns what `whole` had added, or (None, None)."""
        self.state = state._replace(actor=(), counted=())
        snapshot = sums = None
        if state.counted:
            self.tally, sums = state.counted
            snapshot, sums = parallel.of_host((state.actor, sums))
        self.updates = int(parallel.on_host(self.state.updates))
        self.params = self._over_cores(
            lambda state: self._agent.actor_params(state.learner),
            inputs=(LAYOUT,),
            outputs=parallel.SHARED,
        )(self.state)
        return snapshot, sums

    def expect(self, part: Trajectory) -> None:
        """Prepares to count metrics, given the shapes of a trajectory's part."""
        self.tally = self.no_metrics(self.state, part)()

    def no_metrics(self, state: State, part: Trajectory) -> Callable[[], tally.Tally]:
        """A program that makes an empty tally, for states and parts of these shapes."""

        def nothing(state):
            pieces = jax.eval_shape(self._pieces, part)
            return tally.initial_state(
                jax.eval_shape(self._update, state, pieces[0])[1]
            )

        program = self._over_cores(nothing, inputs=(LAYOUT,), outputs=parallel.SHARED)
        shapes = jax.eval_shape(program, state)
        return self._over_cores(
            lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
            inputs=(),
            outputs=parallel.SHARED,
        )

    def learn(self, parts: list[Trajectory]) -> None:
        """Learns from a trajectory, one part per core; updates `state` and `params`."""
        if self.tally is None:
            self.expect(parts[0])
        trajectory = parallel.join(parts, TRAJECTORY, self._mesh)
        self.state, self.tally, self.params = self.programs.learn(
            self.state, self.tally, trajectory
        )
        self.updates += self.updates_per_trajectory

    def metrics(self) -> Metrics:
        """Means since the last call; FloatingPointError where one is not finite."""
        read, self.tally = self.programs.read(self.tally)
        names = sorted(self.tally.means)  # the order of a tree's leaves
        means, failures = (
            dict(zip(names, x, strict=True)) for x in parallel.on_host(read)
        )
        tally.stop_if_not_finite(failures)
        return tally.reported(means)

    def _over_cores(self, function, **options):
        return parallel.over_cores(function, self._mesh, **options)

    def _start_on_core(self, key: Key):
        learner_key, run_key = jax.random.split(key)
        learner = self._agent.initial_learner_state(learner_key)
        state = State(learner, run_key, jnp.uint32(0))
        return state, self._agent.actor_params(learner)

    def _learn_on_core(self, state: State, counted: tally.Tally, trajectory):
        def update(carry, piece: Trajectory):
            state, counted = carry
            learner, metrics = self._update(state, piece)
            state = State(learner, state.key, state.updates + 1)
            metrics = parallel.AVERAGE(tally.as_floats(metrics))
            counted = tally.add(counted, metrics, state.updates)
            return (state, counted), None

        stacked = jax.tree.map(lambda *x: jnp.stack(x), *self._pieces(trajectory))
        (state, counted), _ = jax.lax.scan(update, (state, counted), stacked)
        return state, counted, self._agent.actor_params(state.learner)

    def _read_on_core(self, counted: tally.Tally):
        """Means and failures, two arrays so as to be two transfers; and an empty tally."""
        trees = counted.means, counted.failures
        read = [jnp.stack(jax.tree.leaves(tree)) for tree in trees]
        return read, tally.initial_state(counted.means)

    def _pieces(self, part: Trajectory) -> list[Trajectory]:
        return parallel.split(part, TRAJECTORY, self.updates_per_trajectory)
