"""The actor-critic network for an environment's observations and actions."""

from collections.abc import Callable
from typing import Any

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
from dm_env import specs

from podracer import kernels
from podracer.agent import Key, PyTree
from podracer.errors import UserError
from podracer.networks import encoders, heads, torsos
from podracer.networks.masks import forbid_in_policy, mask_network
from podracer.networks.modules import ActorCritic, Config, WithHeads, make_layers
from podracer.networks.network import Network, of_modules
from podracer.observations import selected

DEFAULT = Config()


def actor_critic(
    observation_spec: Any, action_spec: specs.Array, config: Config = DEFAULT
) -> Network:
    """A network with a policy and a value, for an environment's specs.

    The policy is over the actions that a field `action_mask` of the observation allows, if
    there is one (`podracer.networks.masks`).

    Raises UserError for actions that no policy supports, for a mask that does not fit them,
    for an observation that is not an image where the torso or `center_images` needs one or has
    no elements, and, when traced, for observations unlike their spec.
    """
    module = ActorCritic(config, heads.actions_of(action_spec))
    network = build(observation_spec, config, module, len(config.branches))
    network = network._replace(is_value=of_modules("value", "value_head"))
    return mask_network(network, action_spec, forbid_in_policy)


def with_heads(
    observation_spec: Any, config: Config, predict: Callable[[jax.Array], PyTree]
) -> Network:
    """A network of one branch with the heads `predict(features [T, B, F])`, flax layers.

    Raises UserError as `actor_critic` does for observations, and for a separate value.
    """
    if config.separate_value or config.value_sees:
        sees = f"value_sees is {config.value_sees}"
        raise UserError(
            f"{'separate_value is true' if config.separate_value else sees}, but this network has one torso for all of "
            "its heads: leave it out"
        )
    return build(observation_spec, config, WithHeads(config, predict))


def build(
    observation_spec: Any, config: Config, module: nn.Module, branches: int = 1
) -> Network:
    """A network for an environment's observations, with any heads.

    Args:
      observation_spec: a pytree of dm_env specs.
      config: of the module's branches.
      module: (memory, timesteps [T, B, ...]) -> (memory, predictions [T, B, ...]), made of
        `Branch(config)`, each with an element of `memory`, and heads.
      branches: number of them.

    Raises UserError for observations that its torsos cannot see (`encoders.torsos_of`), that
    lack a leaf which a branch is to see, or that have no image for `center_images`, and, when
    traced, for those unlike their spec.
    """
    observation = observation_spec[0] if config.last_action else observation_spec
    chosen = [
        encoders.torsos_of(selected(observation, sees), config.torso)
        for sees in config.branches.values()
    ]
    if config.center_images and all({*x.values()} == {"mlp"} for x in chosen):
        raise UserError(
            "center_images is true, but no leaf of the observation goes through convolutions: "
            "leave it out (--network.no-center-images)"
        )

    def apply(params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep):
        check_shapes(observation_spec, timesteps)
        observation = torsos.one_hot(timesteps.observation, observation_spec)
        return module.apply(params, memory, timesteps._replace(observation=observation))

    def init(key: Key) -> PyTree:
        zeros = jnp.zeros((1, 1))
        timesteps = dm_env.TimeStep(
            zeros.astype(jnp.int32),
            zeros,
            zeros,
            torsos.one_hot(
                jax.tree.map(
                    lambda spec: jnp.zeros((1, 1, *spec.shape), spec.dtype),
                    observation_spec,
                ),
                observation_spec,
            ),
        )
        return module.init(key, initial_memory(1), timesteps)

    def initial_memory(batch_size: int) -> PyTree:
        core = tuple(layer.initial(batch_size) for layer in make_layers(config))
        return (core,) * branches

    def step(params: PyTree, memory: PyTree, timestep: dm_env.TimeStep):
        timesteps = jax.tree.map(lambda x: x[None], timestep)
        memory, predictions = apply(params, memory, timesteps)
        return memory, jax.tree.map(lambda x: x[0], predictions)

    def at_once(params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep):
        return apply(params, memory, timesteps)[1]

    unroll = kernels.unroll(step, at_once)
    return Network(init, initial_memory, step, unroll, observation_spec)


def check_shapes(observation_spec: Any, timesteps: dm_env.TimeStep) -> None:
    """Raises UserError where observations [T, B, ...] do not have their spec's shapes.

    Called when traced. Otherwise a network would flatten or broadcast them silently.
    """
    observation, batch = timesteps.observation, timesteps.reward.shape
    structures = [*map(jax.tree.structure, (observation_spec, observation))]
    if structures[0] != structures[1]:
        raise UserError(
            f"observation has the structure {structures[1]}, but observation_spec "
            f"{structures[0]}: correct the environment or its observation_spec"
        )
    named = jax.tree_util.tree_leaves_with_path(observation_spec)
    for (path, spec), x in zip(named, jax.tree.leaves(observation), strict=True):
        if x.shape != (*batch, *spec.shape):
            raise UserError(
                f"observation{jax.tree_util.keystr(path)} has shape "
                f"{x.shape[len(batch) :]}, but observation_spec says {spec.shape}: correct "
                "the environment or its observation_spec"
            )
