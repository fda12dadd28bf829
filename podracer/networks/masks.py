"""Action masks: a field `action_mask` of the observation says which actions are allowed.

It is True for the actions that are allowed, in a mapping or a NamedTuple. Its shape is [A] for
one of A choices; for several choices of A_1, ..., A_K, which are masked independently of one
another, it is [A_1 + ... + A_K], or [K, A] where all of them are A; for a composite action it
is a tree like the action, of a mask for each discrete part.

A forbidden action has a logit, or a value, of -inf: its probability is 0, whatever is sampled,
compared or maximized (Huang and Ontanon 2020, arXiv:2006.14171). Where everything is forbidden,
as some environments say at the end of an episode, the action makes no difference, and nothing
is; `find_nothing_allowed` says where it does.
"""

from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import PyTree
from podracer.errors import UserError
from podracer.networks import heads
from podracer.networks.network import Network
from podracer.networks.policies import masked
from podracer.observations import ACTION_MASK, action_mask, named


def make_mask(observation_spec: Any, action_spec: Any) -> Callable | None:
    """(observation [...]) -> {name of an action's part: bool [..., A_1 + ... + A_K]}.

    The name of an action that has no parts is empty. None where nothing is masked. Raises
    UserError for a field `action_mask` that does not fit the actions.
    """
    choices = _choices(observation_spec, action_spec)
    if choices is None:
        return None

    def allowed(observation: PyTree) -> dict[str, jax.Array]:
        return {
            name: jnp.concatenate([x | ~x.any(-1, keepdims=True) for x in masks], -1)
            for name, masks in choices(observation).items()
        }

    return allowed


def find_nothing_allowed(observation_spec: Any, action_spec: Any) -> Callable | None:
    """(timesteps [...]) -> bool [...], where an action is due and a choice has none.

    None where nothing is masked. Raises UserError as `make_mask`.
    """
    choices = _choices(observation_spec, action_spec)
    if choices is None:
        return None

    def find(timesteps: dm_env.TimeStep) -> jax.Array:
        masks = jax.tree.leaves(choices(timesteps.observation))
        nothing = [~x.any(-1) for x in masks]
        return ~timesteps.last() & jnp.stack(nothing).any(0)

    return find


def _choices(observation_spec: Any, action_spec: Any) -> Callable | None:
    """(observation [...]) -> {name of an action's part: K masks, bool [..., A_k]}."""
    spec = action_mask(observation_spec)
    if spec is None:
        return None
    actions, masks = named(action_spec), named(spec)
    sizes = {}
    for name, mask in masks.items():
        path = ".".join(filter(None, (ACTION_MASK, name)))
        if name not in actions:
            raise UserError(
                f"observation_spec's {path} masks no part of the action {[*actions]}: give "
                "each mask the name of its part"
            )
        sizes[name] = _sizes(path, mask, actions[name])

    def choices(observation: PyTree) -> dict[str, list[jax.Array]]:
        return {
            name: _split(mask != 0, len(masks[name].shape), sizes[name])
            for name, mask in named(action_mask(observation)).items()
        }

    return choices


def _sizes(path: str, mask: Any, action: Any) -> tuple[int, ...]:
    """The number of each of the choices that a mask is for; UserError where it does not fit."""
    kind, sizes = heads.kind_of(action)
    shapes = [(sum(sizes),)]
    if kind == "several" and len({*sizes}) == 1:
        shapes.append((len(sizes), sizes[0]))
    if kind == "numbers" or mask.shape not in shapes or mask.dtype.kind not in "bui":
        raise UserError(
            f"observation_spec's {path} is {mask.dtype} {mask.shape}; it must be bool or "
            f"integers {' or '.join(map(str, shapes))}, True where an action is allowed: "
            "correct the environment, and leave observations unnormalized and unscaled"
        )
    return sizes


def _split(mask: jax.Array, axes: int, sizes: tuple[int, ...]) -> list[jax.Array]:
    """The masks [..., A_k] of each choice, of a mask whose last `axes` are its spec's."""
    mask = mask.reshape(*mask.shape[: mask.ndim - axes], sum(sizes))
    return jnp.split(mask, np.cumsum(sizes)[:-1], axis=-1)


def mask_network(
    network: Network,
    action_spec: Any,
    forbid: Callable[[PyTree, dict[str, jax.Array]], PyTree],
) -> Network:
    """A network whose predictions [...] forbid what the timesteps' masks forbid.

    Args:
      network: made for observations with a mask, or without.
      action_spec: the environment's.
      forbid: (predictions [...], masks as of `make_mask`) -> predictions.

    Raises UserError as `make_mask`.
    """
    spec = network.observation_spec
    including_action = isinstance(spec, tuple) and not hasattr(spec, "_fields")
    allowed = make_mask(spec[0] if including_action else spec, action_spec)
    if allowed is None:
        return network

    def masked(predictions: PyTree, timesteps: dm_env.TimeStep) -> PyTree:
        observation = timesteps.observation
        return forbid(
            predictions, allowed(observation[0] if including_action else observation)
        )

    def step(params: PyTree, memory: PyTree, timestep: dm_env.TimeStep):
        memory, predictions = network.step(params, memory, timestep)
        return memory, masked(predictions, timestep)

    def unroll(params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep):
        return masked(network.unroll(params, memory, timesteps), timesteps)

    return network._replace(step=step, unroll=unroll)


def forbid_in_policy(predictions: Any, allowed: dict[str, jax.Array]) -> Any:
    """`mask_network`'s `forbid` for predictions with an attribute `policy`."""
    return predictions._replace(policy=masked(predictions.policy, allowed))


def forbid_in_values(values: jax.Array, allowed: dict[str, jax.Array]) -> jax.Array:
    """`mask_network`'s `forbid` for action values [..., A]."""
    return jnp.where(allowed[""], values, -jnp.inf)
