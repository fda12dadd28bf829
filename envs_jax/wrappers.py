"""Wrappers around environments: time limits, automatic resets, batches."""

import dataclasses
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from envs_jax.environment import Environment, Key, ProtocolError

MOST_STEPS = 2**31 - 1  # of an episode, which int32 counts


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """An environment around another; methods that it does not override are forwarded."""

    environment: Environment

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        return self.environment.initial_state(key)

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        return self.environment.step(key, state, action)

    def observation_spec(self) -> Any:
        return self.environment.observation_spec()

    def action_spec(self) -> Any:
        return self.environment.action_spec()

    def render(self, state: Any) -> jax.Array:
        """The inner environment's picture, uint8 [H, W, 3]."""
        return self.environment.render(state)

    def succeeded(self, state: Any) -> jax.Array:
        """Whether the inner environment's goal is reached, bool []."""
        return self.environment.succeeded(state)


class TimeLimitState(NamedTuple):
    inner: Any
    steps: jax.Array  # int32 [], since FIRST


@dataclasses.dataclass(frozen=True)
class TimeLimit(Wrapper):
    """Truncates an episode after `max_steps` steps: LAST, with the discount unchanged."""

    max_steps: int = 1_000

    def __post_init__(self):
        if not 1 <= self.max_steps <= MOST_STEPS:
            raise ValueError(
                f"max_steps is {self.max_steps}; it must be from 1 to {MOST_STEPS}"
            )

    def initial_state(self, key: Key) -> tuple[TimeLimitState, dm_env.TimeStep]:
        inner, timestep = self.environment.initial_state(key)
        return TimeLimitState(inner, jnp.int32(0)), timestep

    def step(self, key: Key, state: TimeLimitState, action: jax.Array):
        inner, timestep = self.environment.step(key, state.inner, action)
        steps = state.steps + 1
        cut = steps >= self.max_steps
        step_type = jnp.where(cut, jnp.int32(dm_env.StepType.LAST), timestep.step_type)
        return TimeLimitState(inner, steps), timestep._replace(step_type=step_type)

    def render(self, state: TimeLimitState) -> jax.Array:
        """The inner environment's picture, uint8 [H, W, 3]."""
        return self.environment.render(state.inner)

    def succeeded(self, state: TimeLimitState) -> jax.Array:
        """Whether the inner environment's goal is reached, bool []."""
        return self.environment.succeeded(state.inner)


class AutoResetState(NamedTuple):
    inner: Any
    last: jax.Array  # bool [], the episode has ended


@dataclasses.dataclass(frozen=True)
class AutoReset(Wrapper):
    """The step after LAST ignores its action and returns FIRST of a new episode (dm_env)."""

    def initial_state(self, key: Key) -> tuple[AutoResetState, dm_env.TimeStep]:
        inner, timestep = self.environment.initial_state(key)
        return AutoResetState(inner, jnp.bool_(False)), timestep

    def step(self, key: Key, state: AutoResetState, action: jax.Array):
        # One key for both: only one of the two branches takes effect.
        inner, timestep = jax.lax.cond(
            state.last,
            lambda: self.environment.initial_state(key),
            lambda: self.environment.step(key, state.inner, action),
        )
        return AutoResetState(inner, timestep.last()), timestep

    def render(self, state: AutoResetState) -> jax.Array:
        """The inner environment's picture, uint8 [H, W, 3]."""
        return self.environment.render(state.inner)

    def succeeded(self, state: AutoResetState) -> jax.Array:
        """Whether the inner environment's goal is reached, bool []."""
        return self.environment.succeeded(state.inner)


def as_declared(environment: Environment, action: Any) -> Any:
    """Actions [B, ...] in the dtypes of their spec; ProtocolError for those of another spec."""
    with jax.ensure_compile_time_eval():  # a spec may be computed, too
        action_spec = environment.action_spec()
    structure, expected = map(jax.tree.structure, (action, action_spec))
    if structure != expected:
        raise ProtocolError(
            f"an action is a {structure}; action_spec says {expected}: make the agent for "
            "this environment"
        )

    def leaf(spec: Any, x: jax.Array) -> jax.Array:
        is_float, may_be = (jnp.issubdtype(y.dtype, jnp.floating) for y in (x, spec))
        if x.shape[1:] != spec.shape or (is_float and not may_be):
            raise ProtocolError(
                f"an action is {x.dtype} {x.shape[1:]}; action_spec says {spec.dtype} "
                f"{spec.shape}: make the agent for this environment"
            )
        return x.astype(jax.dtypes.canonicalize_dtype(spec.dtype))

    return jax.tree.map(leaf, action_spec, action)


@dataclasses.dataclass(frozen=True)
class Batched(Wrapper):
    """B copies at once: all arguments (keys too) and results have a leading axis [B, ...]."""

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        return jax.vmap(self.environment.initial_state)(key)

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        action = as_declared(self.environment, action)
        return jax.vmap(self.environment.step)(key, state, action)

    def succeeded(self, state: Any) -> jax.Array:
        """In which of them the goal is reached, bool [B]."""
        return jax.vmap(self.environment.succeeded)(state)


@dataclasses.dataclass(frozen=True)
class PooledReset(Wrapper):
    """B copies [B, ...] that share `pool_size` new episodes per step, for expensive resets.

    `Batched(AutoReset(...))` computes a new episode for every copy in every step, whether
    it is used or not, because `vmap` computes both branches of a condition. Here, copies
    that need a new episode draw one at random from a small pool, which is new in every
    step. Each initial state keeps its probability, but copies that begin in the same step
    may get the same one. The pool depends on the key of a batch's first copy, so that
    episodes depend on the number of cores.
    """

    pool_size: int = 16

    def __post_init__(self):
        if self.pool_size < 1:
            raise ValueError(f"pool_size is {self.pool_size}; it must be at least 1")

    def initial_state(self, key: Key) -> tuple[AutoResetState, dm_env.TimeStep]:
        inner, timestep = jax.vmap(self.environment.initial_state)(key)
        return AutoResetState(inner, timestep.last()), timestep

    def step(self, key: Key, state: AutoResetState, action: jax.Array):
        pool = jax.random.split(jax.random.fold_in(key[0], 1), self.pool_size)
        pool = jax.vmap(self.environment.initial_state)(pool)
        # As in AutoReset, one key for both: only one of the two takes effect.
        place = jax.vmap(lambda key: jax.random.randint(key, (), 0, self.pool_size))(
            key
        )
        action = as_declared(self.environment, action)
        stepped = jax.vmap(self.environment.step)(key, state.inner, action)

        def choose(fresh, x):
            begins = state.last.reshape(-1, *(1,) * (x.ndim - 1))
            return jnp.where(begins, fresh[place], x)

        inner, timestep = jax.tree.map(choose, pool, stepped)
        return AutoResetState(inner, timestep.last()), timestep


def batched(environment: Environment, reset_pool: int | None = None) -> Wrapper:
    """B copies with automatic resets, from a pool of `reset_pool` episodes if given."""
    if reset_pool is None:
        return Batched(auto_reset(environment))
    bare = (
        environment.environment if isinstance(environment, AutoReset) else environment
    )
    return PooledReset(bare, reset_pool)


def auto_reset(environment: Environment) -> AutoReset:
    """`AutoReset(environment)`, or the environment itself if it already is one."""
    return environment if isinstance(environment, AutoReset) else AutoReset(environment)


def unwrapped(environment: Environment) -> Environment:
    """The environment inside all wrappers, which may have `render` and `succeeded`."""
    while isinstance(environment, Wrapper):
        environment = environment.environment
    return environment
