"""Random play that keeps to an action mask, a field `action_mask` of the observation."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from envs_jax.environment import Environment, Key
from envs_jax.wrappers import Wrapper


class AllowedState(NamedTuple):
    inner: Any
    mask: Any  # of the last observation


@dataclasses.dataclass(frozen=True)
class AllowedActions(Wrapper):
    """In the place of a choice that the mask forbids, the environment gets one it allows."""

    def initial_state(self, key: Key) -> tuple[AllowedState, dm_env.TimeStep]:
        inner, timestep = self.environment.initial_state(key)
        return AllowedState(inner, _mask(timestep.observation)), timestep

    def step(
        self, key: Key, state: AllowedState, action: Any
    ) -> tuple[AllowedState, dm_env.TimeStep]:
        masks = dict(jax.tree_util.tree_leaves_with_path(state.mask))

        def allowed(path: Any, spec: specs.Array, part: jax.Array) -> jax.Array:
            return _allowed(spec, masks[path], part) if path in masks else part

        action = jax.tree_util.tree_map_with_path(allowed, self.action_spec(), action)
        inner, timestep = self.environment.step(key, state.inner, action)
        return AllowedState(inner, _mask(timestep.observation)), timestep


def allowed_actions(environment: Environment) -> Environment:
    """`AllowedActions`, if the observations have a mask."""
    masked = _mask(environment.observation_spec()) is not None
    return AllowedActions(environment) if masked else environment


def _mask(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return observation.get("action_mask")
    return getattr(observation, "action_mask", None)


def _allowed(spec: specs.Array, mask: jax.Array, action: jax.Array) -> jax.Array:
    """The choices [] or [K], or for each that is forbidden the next one that is not.

    A mask of another size is of something else, and ignored.
    """
    sizes = np.broadcast_to(getattr(spec, "maximum", -1), spec.shape).reshape(-1) + 1
    if not np.issubdtype(spec.dtype, np.integer) or mask.size != sizes.sum():
        return action
    masks = jnp.split(mask.reshape(-1) != 0, np.cumsum(sizes)[:-1])
    chosen = [
        (choice + jnp.argmax(jnp.roll(mask, -choice))) % mask.size
        for mask, choice in zip(masks, action.reshape(-1), strict=True)
    ]
    return jnp.stack(chosen).reshape(action.shape).astype(action.dtype)
