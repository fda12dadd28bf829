"""The contract: an agent is a handful of pure functions (Podracer, arXiv:2104.06272)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

PyTree = Any
Key = jax.Array  # typed, jax.random.key; used once
Metrics = dict[str, jax.Array]  # scalars of one core; the runner averages over cores
FAILED = "failed/"  # begins the name of a metric that stops a run, see podracer.metrics.tally


class ActorOutput(NamedTuple):
    """An actor's decision, for a batch of B environments."""

    action: PyTree  # [B, ...] as the environment's action_spec
    extras: PyTree  # [B, ...] what the learner must know of it: behaviour logits, ...


class Trajectory(NamedTuple):
    """T steps in B environments: `outputs[t]` answers `timesteps[t]`, `timesteps[t + 1]` follows.

    The last timestep is the first one of the next trajectory.
    """

    timesteps: dm_env.TimeStep  # [T + 1, B, ...]
    outputs: ActorOutput  # [T, B, ...]
    actor_state: PyTree  # [B, ...] the actor's state before timesteps[0]


def with_last(rows: PyTree, last: PyTree) -> PyTree:
    """`rows` [T, B, ...] followed by `last` [B, ...]."""
    return jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), rows, last)


class LearnerState(NamedTuple):
    """Two halves, which are all that a runner knows of a learner's state.

    Each core learns from its own trajectory, so `learner_step` must average over the cores
    whatever enters `shared`, gradients above all: `gradients = average(gradients)`, with the
    `average` given to make_agent (`podracer.parallel.AVERAGE`). Nobody else does.
    """

    shared: PyTree  # equal on every core, bit for bit: params, opt_state, ...
    local: PyTree  # of one core: replay, finished episodes, ...; or ()


class Agent(NamedTuple):
    """An agent knows nothing of environments, threads or devices.

    Any function may be called inside `jit`; none keeps state. `keys` are one per environment,
    so that what happens in an environment does not depend on which core it is on.
    """

    # (key) -> LearnerState
    initial_learner_state: Callable[[Key], LearnerState]
    # (key, learner_state, trajectory) -> (learner_state, metrics): one update
    learner_step: Callable[
        [Key, LearnerState, Trajectory], tuple[LearnerState, Metrics]
    ]
    # (learner_state) -> actor_params, what actors need of it
    actor_params: Callable[[LearnerState], PyTree]
    # (batch_size) -> actor_state [B, ...]
    initial_actor_state: Callable[[int], PyTree]
    # (keys [B], actor_params, actor_state, timestep [B, ...]) -> (actor_state, ActorOutput)
    actor_step: Callable[..., tuple[PyTree, ActorOutput]]
    # the same without exploration: argmax, mean action, no search noise
    greedy_actor_step: Callable[..., tuple[PyTree, ActorOutput]]
    # (key, learner_state, trajectory, weight [B]) -> (learner_state, metrics, priority [B]):
    # `learner_step`, to which trajectory b counts weight[b] times; priority >= 0 is how much
    # is left to learn from each. None: the agent cannot be given prioritized replay
    weighted_step: Callable[..., tuple[LearnerState, Metrics, jax.Array]] | None = None
