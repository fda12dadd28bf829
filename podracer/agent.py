"""The contract: an agent is a handful of pure functions (Podracer, arXiv:2104.06272)."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

PyTree = Any
Key = jax.Array  # typed, jax.random.key; used once
Metrics = dict[
    str, jax.Array
]  # scalars of one core's share; the runner averages them over cores


class ActorOutput(NamedTuple):
    """What an actor decided, for a batch of B environments."""

    action: PyTree  # [B, ...] as the environment's action_spec
    extras: PyTree  # [B, ...] what the learner must know of that decision: behaviour logits, ...


class Trajectory(NamedTuple):
    """T steps in B environments: `outputs[t]` answers `timesteps[t]`, `timesteps[t + 1]` follows.

    The last timestep is the first one of the next trajectory.
    """

    timesteps: dm_env.TimeStep  # [T + 1, B, ...]
    outputs: ActorOutput  # [T, B, ...]
    actor_state: PyTree  # [B, ...] the actor's state before timesteps[0]


def with_last(rows: PyTree, last: PyTree) -> PyTree:
    """`last` [B, ...] put under `rows` [T, B, ...]."""
    return jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), rows, last)


class LearnerState(NamedTuple):
    """The two halves that a runner must tell apart, and all that it knows of a learner."""

    shared: PyTree  # bit-equal on every core: parameters, optimiser, normaliser, ...
    local: (
        PyTree  # belongs to one core and differs: replay, finished episodes, ... or ()
    )


class Agent(NamedTuple):
    """An agent, told nothing of environments, threads or devices.

    Any function may be called inside `jit`; none keeps state. `keys` are one per environment, so
    that what an environment sees does not depend on how the batch is laid over cores.
    """

    # (key) -> LearnerState
    initial_learner_state: Callable[[Key], LearnerState]
    # (key, learner_state, trajectory) -> (learner_state, metrics): one update
    learner_step: Callable[
        [Key, LearnerState, Trajectory], tuple[LearnerState, Metrics]
    ]
    # (learner_state) -> what actors need of it
    actor_params: Callable[[LearnerState], PyTree]
    # (batch_size) -> actor_state [B, ...]
    initial_actor_state: Callable[[int], PyTree]
    # (keys [B], actor_params, actor_state, timestep [B, ...]) -> (actor_state, ActorOutput)
    actor_step: Callable[..., tuple[PyTree, ActorOutput]]
    # the same without exploration: argmax, mean action, no search noise
    greedy_actor_step: Callable[..., tuple[PyTree, ActorOutput]]
    # On-policy agents only, else None: one update that makes its own trajectory and
    # differentiates through the acting, so that the forward pass is not done twice.
    # (key, learner_state, interact) -> (learner_state, metrics, rest), where
    # interact(act) -> (trajectory, predictions [T + 1, B, ...], rest) unrolls
    # act(keys, actor_state, timestep) -> (actor_state, ActorOutput, predictions).
    online_step: Callable[..., tuple[LearnerState, Metrics, PyTree]] | None = None


@dataclasses.dataclass(frozen=True)
class Interface:
    """What lies between an agent and any environment, see normalizer.py and ranges.py."""

    normalize_observations: bool = False
    """to mean 0 and deviation 1 of all that was seen so far"""
    normalize_rewards: bool = False
    """to deviation 1 of the discounted returns so far"""
    scale_observations: bool = False
    """to [-1, 1], from the bounds of the environment's observation_spec"""
    actions: Literal["scale", "clip"] = "scale"
    """numbers outside the environment's bounds are clipped for it, not for the learner;
    scale maps [-1, 1] to the bounds"""


class Preset(NamedTuple):
    """A published setting: an agent's numbers and what belongs to them."""

    config: Any  # the agent's own Config
    unroll_length: int  # T, environment steps
    batch_size: int  # B, environments, over all cores
    network: Any = None  # networks.Config; None: its defaults
    interface: Interface = Interface()
