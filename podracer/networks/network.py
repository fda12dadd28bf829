"""Networks: a torso for the observation, a memory, heads for policy and value.

`Network` is the only place that knows about memory: nothing else resets or replays it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import dm_env
import jax

from podracer.agent import Key, PyTree
from podracer.networks.policies import Policy


class Predictions(NamedTuple):
    """The outputs of an actor-critic network for timesteps [...]."""

    policy: Policy  # [...] a distribution over actions
    value: jax.Array  # [...]


class Network(NamedTuple):
    """A network as pure functions; other networks may predict other pytrees."""

    # (key) -> params
    init: Callable[[Key], PyTree]
    # (batch_size) -> memory [B, ...]
    initial_memory: Callable[[int], PyTree]
    # (params, memory, timestep [B, ...]) -> (memory, predictions [B, ...])
    step: Callable[[PyTree, PyTree, dm_env.TimeStep], tuple[PyTree, Any]]
    # (params, memory before row 0, timesteps [T, B, ...]) -> predictions [T, B, ...]
    unroll: Callable[[PyTree, PyTree, dm_env.TimeStep], Any]
    # a pytree of dm_env specs: the observations that it was made for
    observation_spec: Any
    # (params) -> a tree of bool like them: whether each is a parameter of the value alone;
    # None: the network cannot say, see `of_modules`
    is_value: Callable[[PyTree], PyTree] | None = None


def of_modules(*names: str) -> Callable[[PyTree], PyTree]:
    """(params of a flax module) -> a tree of bool: which are of its submodules `names`."""

    def is_within(path: tuple[Any, ...], _: jax.Array) -> bool:
        return path[1].key in names  # {"params": {submodule: ...}}

    return partial(jax.tree.map_with_path, is_within)


def memory_after(
    network: Network, params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep
) -> PyTree:
    """The memory [B, ...] after the timesteps [T, B, ...], a constant for gradients.

    `memory` is that before row 0. Called burn-in where trajectories are replayed whose
    stored memory is of older parameters (R2D2, openreview.net/forum?id=r1lyTjAqYX).
    """
    if not jax.tree.leaves(memory):
        return memory
    params, memory, timesteps = jax.lax.stop_gradient((params, memory, timesteps))

    def row(memory: PyTree, timestep: dm_env.TimeStep) -> tuple[PyTree, None]:
        return network.step(params, memory, timestep)[0], None

    return jax.lax.scan(row, memory, timesteps)[0]


def last_predictions(
    network: Network, params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep
) -> Any:
    """The predictions [B, ...] for the last of the timesteps [T, B, ...].

    `memory` is that before row 0. Without one, the rows before it need no computation.
    """
    if jax.tree.leaves(memory):
        predictions = network.unroll(params, memory, timesteps)
        return jax.tree.map(lambda x: x[-1], predictions)
    last = jax.tree.map(lambda x: x[-1], timesteps)
    return network.step(params, memory, last)[1]
