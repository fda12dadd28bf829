"""Networks: a torso for what is seen, a memory for what was, heads for what to do.

`Network` is the only place that knows about memory: nobody else resets or replays it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
from dm_env import specs

from podracer import heads, torsos
from podracer.agent import Key, PyTree
from podracer.errors import UserError, check_at_least_one
from podracer.parallel import largest_divisor
from podracer.policies import Policy

# What a CPU looks at in one go, so that activations stay in its cache:
CACHE = 2**20  # bytes of observations
SAMPLES = 256  # of them


class Predictions(NamedTuple):
    """What an actor-critic network says of timesteps [...]."""

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
    # what it was made for
    observation_spec: Any


@dataclasses.dataclass(frozen=True)
class Config:
    """An actor-critic network."""

    torso: Literal["auto", "mlp", "minatar", "shallow", "resnet"] = "auto"
    """what looks at the observation: layers (mlp), the convolutions for MinAtar, those of
    DQN and MonoBeast (shallow), or IMPALA's deep network (resnet); auto takes shallow
    for large images, minatar for small ones and mlp for the rest"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """units of each layer of an mlp torso"""
    activation: Literal["relu", "tanh"] = "relu"
    """non-linearity of an mlp torso"""
    init: Literal["uniform", "glorot", "orthogonal"] = "uniform"
    """first weights of an mlp torso: within +-1/sqrt(fan in) as PyTorch's, Glorot's
    uniform, or orthogonal times sqrt(2)"""
    head: heads.Config = dataclasses.field(default_factory=heads.Config)
    width: int = 1
    """multiplies the channels of a resnet torso"""
    depth: int = 1
    """multiplies the residual blocks of a resnet torso"""
    last_reward: bool = False
    """let the core and heads see the last reward, clipped to [-1, 1]"""
    last_action: bool = False
    """let the core and heads see the last action (the observation must hold it, see
    transformations.observe_last_action)"""
    separate_value: bool = False
    """give the value a torso and core of its own"""
    memory: Literal["none", "lstm", "gru"] = "none"
    """recurrent core between torso and heads"""
    memory_size: int = 128
    """units of each layer of the core"""
    memory_layers: int = 1
    """layers of the core"""

    def __post_init__(self):
        names = ("width", "depth", "memory_size", "memory_layers")
        check_at_least_one(
            **{f"hidden_sizes[{i}]": n for i, n in enumerate(self.hidden_sizes)},
            **{name: getattr(self, name) for name in names},
        )


def actor_critic(
    observation_spec: Any, action_spec: specs.Array, config: Config = Config()
) -> Network:
    """A policy and a value, for an environment's two specs.

    Raises UserError for actions of a kind that no policy is for, and if the observation
    is no image and the torso wants one.
    """
    config = with_torso(observation_spec, config)
    module = ActorCritic(config, *heads.kind_of(action_spec))

    def apply(params: PyTree, memory: PyTree, timesteps: dm_env.TimeStep):
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
        # Zeros: the key and the width of the input play no part.
        core = tuple(
            cell.initialize_carry(jax.random.key(0), (batch_size, 1))
            for cell in make_cells(config)
        )
        return (core, core) if config.separate_value else (core,)

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
        # A CPU is two to three times as fast on a row at a time, whose activations stay
        # in its cache and are computed again for the gradient.
        seen = sum(x.nbytes for x in jax.tree.leaves(timesteps.observation))
        if timesteps.reward.size <= SAMPLES and seen <= CACHE:
            return at_once(params, memory, timesteps)
        return jax.lax.platform_dependent(
            params, memory, timesteps, cpu=row_by_row, default=at_once
        )

    return Network(init, initial_memory, step, unroll, observation_spec)


def by_parts(function: Callable, memory: PyTree, timesteps: dm_env.TimeStep) -> Any:
    """`function((memory, timesteps))` for parts of the batch, one after the other.

    A part is as large as a row of its observations fits into CACHE.
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


def with_torso(observation_spec: Any, config: Config) -> Config:
    """The config with a torso that can look at such observations; else UserError."""
    seen = observation_spec[0] if config.last_action else observation_spec
    shape = getattr(seen, "shape", ())
    side = min(shape[:2]) if len(shape) == 3 else 0  # of an image [H, W, C]
    smallest = {"shallow": 36, "minatar": 3, "mlp": 0, "resnet": 1}  # sides
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


class ActorCritic(nn.Module):
    """(memory [B, ...], timesteps [T, B, ...]) -> (memory, Predictions [T, B, ...])."""

    config: Config
    action_kind: str
    action_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, memory: tuple, timesteps: dm_env.TimeStep):
        names = ("policy", "value") if self.config.separate_value else ("shared",)
        branches = [
            Branch(self.config, name=name)(x, timesteps)
            for name, x in zip(names, memory, strict=True)
        ]
        memory, features = zip(*branches, strict=True)  # features [T, B, F]
        head = heads.PolicyHead(
            self.action_kind, self.action_sizes, self.config.head, name="policy_head"
        )
        value = torsos.dense(1, name="value_head")(features[-1])
        return memory, Predictions(head(features[0]), value[..., 0])


class Branch(nn.Module):
    """Torso and core: what the heads see, [T, B, F]."""

    config: Config

    @nn.compact
    def __call__(self, memory: tuple, timesteps: dm_env.TimeStep):
        config, observation = self.config, timesteps.observation
        if config.last_action:
            observation, last_action = observation
        features = [nn.BatchApply(make_torso(config))(observation)]
        if config.last_reward:
            features.append(jnp.clip(timesteps.reward, -1.0, 1.0)[..., None])
        if config.last_action:
            seen = jnp.where(timesteps.first()[..., None], 0.0, last_action)
            features.append(seen)
        features = jnp.concatenate(features, axis=-1)
        after = []
        for cell, carry in zip(make_cells(config), memory, strict=True):
            carry, features = Core(cell)(carry, features, timesteps.first())
            after.append(carry)
        return tuple(after), features


class Core(nn.Module):
    """A recurrent cell over time, its memory zero before the FIRST of an episode."""

    cell: nn.RNNCellBase

    def __call__(self, memory: PyTree, features: jax.Array, first: jax.Array):
        def step(cell, memory, inputs):
            features, first = inputs  # [B, F], [B]
            memory = jax.tree.map(
                lambda x: jnp.where(first[:, None], jnp.zeros_like(x), x), memory
            )
            return cell(memory, features)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        return scan(self.cell, memory, (features, first))


def make_torso(config: Config) -> nn.Module:
    if config.torso == "mlp":
        activation = getattr(nn, config.activation)
        return torsos.MLP(config.hidden_sizes, activation, torsos.INITS[config.init])
    if config.torso == "resnet":
        return torsos.ResNet(config.width, config.depth)
    return {"minatar": torsos.MinAtar, "shallow": torsos.Shallow}[config.torso]()


def make_cells(config: Config) -> list[nn.RNNCellBase]:
    """A cell for each layer of the core."""
    cells = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}
    if config.memory == "none":
        return []
    return [
        cells[config.memory](config.memory_size) for _ in range(config.memory_layers)
    ]
