"""Actor and critics: a policy, and networks that value an observation with an action.

The critics of SAC (arXiv:1812.05905) and TD3 (arXiv:1802.09477), which share nothing with the
policy nor with one another. With several quantiles a critic predicts the distribution of the
return (arXiv:1710.10044) rather than its mean.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer.agent import Key, PyTree
from podracer.errors import UserError, check_at_least_one
from podracer.networks import heads, modules, torsos
from podracer.networks.building import with_heads
from podracer.networks.network import Network
from podracer.observations import selected


@dataclasses.dataclass(frozen=True)
class Config(modules.Config):
    """A policy and critics, each with a torso of its own."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """number of units in each layer of an mlp torso"""
    critics: int = 2
    """number of critics; targets take the most pessimistic one"""
    quantiles: int = 1
    """number of quantiles of the return that a critic predicts; 1: its mean"""

    def __post_init__(self):
        super().__post_init__()
        check_at_least_one(critics=self.critics, quantiles=self.quantiles)
        for name in ("memory", "last_reward", "last_action", "separate_value"):
            value = getattr(self, name)
            if value != getattr(modules.Config, name):
                raise UserError(
                    f"{name} is {value}, which an actor with critics does not have: it "
                    "learns from single transitions, with a torso for each; leave it out"
                )


class Params(NamedTuple):
    """The parameters of `ActorAndCritics`."""

    policy: PyTree
    critics: tuple[PyTree, ...]  # K


class ActorParams(NamedTuple):
    """What actors need."""

    policy: PyTree
    untrained: jax.Array  # bool [], until the first update, when actions are random


class ActorAndCritics(NamedTuple):
    """A policy and its critics, as pure functions."""

    # (key) -> Params
    init: Callable[[Key], Params]
    # (params.policy, timesteps [T, B, ...]) -> its predictions [T, B, ...]
    policy: Callable[[PyTree, dm_env.TimeStep], Any]
    # (params.policy, timestep [B, ...]) -> its predictions [B, ...]
    act: Callable[[PyTree, dm_env.TimeStep], Any]
    # (params.critics, timesteps [T, B, ...], action [T, B, D]) -> values [K, T, B, quantiles]
    values: Callable[[PyTree, dm_env.TimeStep, jax.Array], jax.Array]
    action_size: int  # D


def actor_and_critics(
    observation_spec: Any,
    action_spec: Any,
    config: Config,
    policy_head: Callable[[jax.Array], Any],
    who: str,
) -> ActorAndCritics:
    """The networks of an algorithm `who`, for an environment's specs.

    The policy sees `config.policy_sees`, the critics `config.value_sees` and the action.

    Args:
      observation_spec: a pytree of dm_env specs.
      action_spec: of floats [D] from -1 to 1; UserError otherwise.
      policy_head: features [..., F] -> predictions, flax layers called in a module.
    """
    size = _action_size(action_spec, who)
    plain = dataclasses.replace(config, value_sees=())
    policy = with_heads(observation_spec, plain, policy_head)
    plain = dataclasses.replace(plain, policy_sees=())
    seen = selected(observation_spec, config.value_sees)
    critic = with_heads(
        (seen, action_spec),
        plain,
        lambda features: torsos.dense(config.quantiles, "value_head")(features),
    )

    def init(key: Key) -> Params:
        first, *others = jax.random.split(key, 1 + config.critics)
        return Params(policy.init(first), tuple(map(critic.init, others)))

    def act(params: PyTree, timestep: dm_env.TimeStep) -> Any:
        memory = policy.initial_memory(timestep.reward.shape[0])
        return policy.step(params, memory, timestep)[1]

    def values(critics: PyTree, timesteps: dm_env.TimeStep, action: jax.Array):
        observation = selected(timesteps.observation, config.value_sees), action
        timesteps = timesteps._replace(observation=observation)
        return jnp.stack([_unroll(critic, params, timesteps) for params in critics])

    return ActorAndCritics(init, partial(_unroll, policy), act, values, size)


def lowest(values: jax.Array) -> jax.Array:
    """Of critics [K, ..., quantiles] the one with the lowest mean, for each element [...]."""
    best = jnp.argmin(jnp.mean(values, -1), 0)
    chosen = jax.nn.one_hot(best, len(values), axis=0, dtype=bool)[..., None]
    return jnp.sum(jnp.where(chosen, values, 0.0), 0)


def anything(keys: jax.Array, action: jax.Array) -> jax.Array:
    """An action like `action` [B, D], uniform within -1 and 1; keys [B]."""
    draw = partial(jax.random.uniform, minval=-1.0, maxval=1.0)
    return jax.vmap(lambda key: draw(key, action.shape[1:]))(keys)


def errors(values: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
    """How far values [K, T, B, quantiles] are from targets [T, B, quantiles], [B].

    The mean over time of the mean absolute difference; `mask` [T, B] is 0 where void.
    """
    differences = jnp.abs(jnp.mean(values, -1) - jnp.mean(target, -1)[None])
    return jnp.mean(mask * jnp.mean(differences, 0), 0)


def check(network: Any, who: str) -> None:
    """Raises UserError for a network of another kind."""
    if not isinstance(network, ActorAndCritics):
        raise UserError(
            f"network is {type(network).__name__}; {who} has a policy and critics, "
            "podracer.networks.critics.ActorAndCritics: leave --network out, or return one"
        )


def _unroll(network: Network, params: PyTree, timesteps: dm_env.TimeStep) -> Any:
    memory = network.initial_memory(timesteps.reward.shape[1])
    return network.unroll(params, memory, timesteps)


def _action_size(action_spec: Any, who: str) -> int:
    """The number of floats in an action. Raises UserError for other actions."""
    single = isinstance(action_spec, specs.Array)
    kind, sizes = heads.kind_of(action_spec) if single else ("a tree", ())
    if kind != "numbers":
        raise UserError(
            f"action_spec is {' '.join(str(action_spec).split())}; {who} is for actions "
            "[D] of floats: use another agent, such as dqn for one choice, or ppo"
        )
    low, high = np.min(action_spec.minimum), np.max(action_spec.maximum)
    if not (np.all(action_spec.minimum == -1.0) and np.all(action_spec.maximum == 1.0)):
        raise UserError(
            f"actions have bounds {low:g} to {high:g}, and {who} acts within -1 and 1: "
            "leave --interface.actions at scale"
        )
    return math.prod(sizes)
