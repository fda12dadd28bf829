"""The actor-critic network for an environment's observations and actions."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
from dm_env import specs

from podracer.agent import Key, PyTree
from podracer.errors import UserError
from podracer.networks import heads, torsos
from podracer.networks.modules import ActorCritic, Config, WithHeads, make_cells
from podracer.networks.network import Network, of_modules
from podracer.parallel import largest_divisor

DEFAULT = Config()

# What a CPU processes at once, so that activations stay in its cache:
CACHE = 2**21  # bytes of observations
SAMPLES = 512  # number of observations
# Up to WIDE sequences are slow row by row, and keep activations of LONG times as much.
WIDE, LONG = 8, 8


def actor_critic(
    observation_spec: Any, action_spec: specs.Array, config: Config = DEFAULT
) -> Network:
    """A network with a policy and a value, for an environment's specs.

    Raises UserError for actions that no policy supports, for an observation that is no image
    where the torso needs one or has no elements, and, when traced, for observations unlike
    their spec.
    """
    config = with_torso(observation_spec, config)
    module = ActorCritic(config, *heads.kind_of(action_spec))
    branches = 2 if config.separate_value else 1
    network = build(observation_spec, config, module, branches)
    return network._replace(is_value=of_modules("value", "value_head"))


def with_heads(
    observation_spec: Any, config: Config, predict: Callable[[jax.Array], PyTree]
) -> Network:
    """A network of one branch with the heads `predict(features [T, B, F])`, flax layers.

    Raises UserError as `actor_critic` does for observations, and for a separate value.
    """
    if config.separate_value:
        raise UserError(
            "separate_value is true, but this network has one torso for all of its heads: "
            "leave it out"
        )
    config = with_torso(observation_spec, config)
    return build(observation_spec, config, WithHeads(config, predict))


def build(
    observation_spec: Any, config: Config, module: nn.Module, branches: int = 1
) -> Network:
    """A network for an environment's observations, with any heads.

    Args:
      observation_spec: a pytree of dm_env specs.
      config: of the module's branches, see `with_torso`.
      module: (memory, timesteps [T, B, ...]) -> (memory, predictions [T, B, ...]), made of
        `Branch(config)`, each with an element of `memory`, and heads.
      branches: number of them.

    Raises UserError, when traced, for observations unlike their spec.
    """

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
        # All zeros: neither the key nor the width of the input matters.
        core = tuple(
            cell.initialize_carry(jax.random.key(0), (batch_size, 1))
            for cell in make_cells(config)
        )
        return (core,) * branches

    def step(params: PyTree, memory: PyTree, timestep: dm_env.TimeStep):
        timesteps = jax.tree.map(lambda x: x[None], timestep)
        memory, predictions = apply(params, memory, timesteps)
        return memory, jax.tree.map(lambda x: x[0], predictions)

    def at_once(params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep):
        return apply(params, memory, timesteps)[1]

    def row_by_row(params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep):
        def row(memory, timestep):
            return jax.checkpoint(step)(params, memory, timestep)

        def rows(part):
            return jax.lax.scan(row, *part)[1]

        return by_parts(rows, memory, timesteps)

    def unroll(params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep):
        # Where rows are wide, a CPU is two to three times faster row by row: a row's
        # activations stay in its cache, and are recomputed for the gradient.
        seen = sum(x.nbytes for x in jax.tree.leaves(timesteps.observation))
        if keeps_activations(*timesteps.reward.shape, seen):
            return at_once(params, memory, timesteps)
        return jax.lax.platform_dependent(
            params, memory, timesteps, cpu=row_by_row, default=at_once
        )

    return Network(init, initial_memory, step, unroll, observation_spec)


def sequences_at_once(
    length: int, nbytes: int, batch_size: int, recurrent: bool
) -> int:
    """How many sequences, of so many rows and bytes each, a CPU learns from at once.

    A divisor of the batch size: few, so that activations stay in the cache, but up to WIDE
    for a recurrent core, which is slow with few. The next larger one, if its activations are
    kept, where the batch size has only small ones, as twice a prime number. If these
    sequences are too long to keep their activations, all: the network then goes row by row,
    and rows are as wide as the batch.
    """

    def kept(size: int) -> bool:
        return keeps_activations(length, size, size * nbytes)

    most = max(1, min(SAMPLES // length, CACHE // nbytes), WIDE * recurrent)
    size = largest_divisor(batch_size, most)
    if 4 * size < min(most, batch_size):
        larger = batch_size // largest_divisor(batch_size, batch_size // most)
        size = larger if kept(larger) else size
    return size if kept(size) else batch_size


def keeps_activations(length: int, width: int, nbytes: int) -> bool:
    """Whether a CPU computes `length` rows of `width` observations at once, not row by row.

    `nbytes` are those of all observations. A single row has no rows to go by.
    """
    times = LONG if width <= WIDE or length == 1 else 1
    return length * width <= times * SAMPLES and nbytes <= times * CACHE


def by_parts(function: Callable, memory: PyTree, timesteps: dm_env.TimeStep) -> Any:
    """`function((memory, timesteps))` for one part of the batch after another.

    Parts are as large as CACHE allows for a row of observations.
    """
    batch_size = timesteps.reward.shape[1]
    row = sum(x[0].nbytes for x in jax.tree.leaves(timesteps.observation))
    parts = batch_size // largest_divisor(batch_size, batch_size * CACHE // row)
    if parts == 1:
        return function((memory, timesteps))

    def cut(x, axis):
        return jnp.stack(jnp.split(x, parts, axis))

    memory = jax.tree.map(lambda x: cut(x, 0), memory)
    timesteps = jax.tree.map(lambda x: cut(x, 1), timesteps)
    results = jax.lax.map(function, (memory, timesteps))  # [parts, T, B / parts, ...]
    return jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], batch_size, *x.shape[3:]),
        results,
    )


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


def with_torso(observation_spec: Any, config: Config) -> Config:
    """The config with a torso for such observations, chosen if auto; else UserError."""
    seen = observation_spec[0] if config.last_action else observation_spec
    if not any(math.prod(spec.shape) for spec in jax.tree.leaves(seen)):
        raise UserError(
            f"observation_spec is {seen}, without a number that a network could see: where "
            "there is nothing to observe, give a constant of shape (1,)"
        )
    shape = getattr(seen, "shape", ())
    side = min(shape[:2]) if len(shape) == 3 else 0  # of an image [H, W, C]
    smallest = {"shallow": 36, "a3c": 20, "minatar": 3, "mlp": 0, "resnet": 1}  # sides
    if config.torso == "auto":
        names = ("shallow", "minatar", "mlp")
        torso = next(name for name in names if side >= smallest[name])
        return dataclasses.replace(config, torso=torso)
    if side < smallest[config.torso]:
        raise UserError(
            f"torso is {config.torso}, for images [H, W, C] of at least "
            f"{smallest[config.torso]} pixels a side; the observation is "
            f"{shape or seen}: try torso mlp"
        )
    return config
