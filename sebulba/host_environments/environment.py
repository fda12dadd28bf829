"""The protocol of environments on the host: batches of them, as numpy arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import dm_env
import jax
import numpy as np


class HostEnvironment(Protocol):
    """B environments that step together; owned by one actor thread.

    Timesteps are dm_env's, with a leading axis B: step_type int32, reward float32 (0 at
    FIRST), discount float32 (1 at FIRST; at LAST 0 for a termination, 1 for a truncation),
    observation a pytree. After LAST an environment ignores its action and returns FIRST of
    a new episode. Arrays that were returned are not written again; with the strides of a
    transposed array, images can take ten times as long to reach a GPU. Training checks the
    first timesteps and actions, and each 1,000th.

    An environment may offer more, see `Capabilities`.
    """

    batch_size: int  # B
    frames_per_step: int  # emulator frames in an environment step

    def reset(self) -> dm_env.TimeStep:
        """FIRST in every environment. Called before any step."""

    def step(self, action: Any) -> dm_env.TimeStep:
        """The timesteps after `action` [B, ...], in the dtypes of its spec; read-only."""

    def observation_spec(self) -> Any:
        """A pytree of dm_env specs, without the batch axis."""

    def action_spec(self) -> Any:
        """A dm_env spec, or a pytree of them, without the batch axis."""

    def finished_games(self) -> "Games | None":
        """Games finished since the last call; None if each episode is a whole game."""

    def lost_episodes(self) -> int:
        """Number of unfinished episodes that were discarded since the last call."""

    def close(self) -> None:
        """Frees all resources. Called once, last."""


class Capabilities(NamedTuple):
    """What an environment offers beyond `HostEnvironment`, by optional members."""

    # `patience`: seconds after which a step, which replaces what died or hung, ends or raises
    # by its own time limits
    patience: float
    # `snapshot()`, a pytree of arrays (none of 64 bits) that are not written again, and
    # `restore(snapshot)`, called after `reset`: a lock-step run resumes bit for bit
    snapshot: bool
    # `send(action [M, ...], which [M])` and `receive()`, a list of (number, timestep) of those
    # that have answered, one at least: environments answer at different times
    dynamic: bool
    # `compiled()`, a `Compiled`, or None if they cannot (asked once before `reset`, and called
    # after it), and `stepped(timestep, recorded)`, called after each unroll in place of `step`
    # with the last timestep and what was recorded [T, ...] in all of its steps: an actor on a
    # CPU steps them inside its program. Training then checks only what `reset` returns.
    compiled: bool
    # `render()`, uint8 [H, W, 3] of the first environment, at `render_fps` pictures per second
    render: bool
    # `succeeded()`, bool [B]: which environments reached their goal in the last timestep, or
    # None where they do not say
    success: bool


def capabilities_of(environment: Any) -> Capabilities:
    """What the environment offers; nothing else looks for its optional members."""
    snapshot = hasattr(environment, "snapshot")
    return Capabilities(
        patience=getattr(environment, "patience", 0.0),
        snapshot=snapshot,
        dynamic=hasattr(environment, "receive"),
        compiled=_compiles_its_step(type(environment)) and not snapshot,
        render=hasattr(environment, "render"),
        success=hasattr(environment, "succeeded"),
    )


def _compiles_its_step(kind: type) -> bool:
    """Whether `compiled` does what `step` does: a subclass or a wrapper may have another."""
    bases = (x for x in kind.__mro__ if {"step", "compiled"} & vars(x).keys())
    return "compiled" in vars(next(bases, object))


class Compiled(NamedTuple):
    """How a program on a CPU steps a batch of environments."""

    state: Any  # a pytree of arrays (none of 64 bits), carried from step to step
    # (state, action [B, ...]) -> (state, TimeStep [B, ...], what is recorded), inside jax.jit
    step: Callable[[Any, Any], tuple[Any, dm_env.TimeStep, Any]]


class Games(NamedTuple):
    """Whole games, where an episode is only a part of one (a life)."""

    finished: float
    return_sum: float


class GameCounter:
    """Sums the returns of whole games over their episodes."""

    def __init__(self, batch_size: int):
        self._return, self._sums = np.zeros(batch_size), Games(0.0, 0.0)

    def add(self, reward: np.ndarray, over: np.ndarray) -> None:
        """A step's rewards [B], and whether it ended the game [B]."""
        self._return += reward
        self._sums = Games(
            self._sums.finished + float(over.sum()),
            self._sums.return_sum + float(self._return[over].sum()),
        )
        self._return[over] = 0.0

    def collect(self) -> Games:
        """The games since the last call."""
        sums, self._sums = self._sums, Games(0.0, 0.0)
        return sums


class NextStepReset:
    """Timesteps of a simulator that resets in the step after the last of an episode.

    gymnasium's AutoresetMode.NEXT_STEP, which is dm_env's own order.
    """

    def __init__(self, batch_size: int):
        self._over = np.ones(batch_size, bool)  # [B], in the last timestep

    @property
    def unfinished(self) -> int:
        """Number of episodes under way."""
        return int((~self._over).sum())

    def timestep(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any
    ) -> dm_env.TimeStep:
        """What the simulator returned [B, ...], in dm_env's terms."""
        self._over, timestep = next_step(
            self._over, observation, reward, terminated, truncated
        )
        return timestep


def next_step(
    over: Any, observation: Any, reward: Any, terminated: Any, truncated: Any
) -> tuple[Any, dm_env.TimeStep]:
    """(over, timestep) of a `NextStepReset`, for arrays of NumPy or JAX [B, ...].

    `over` are the episodes that ended in the timestep before, and in this one.
    """
    begun = ~over
    over = (terminated | truncated) & begun
    # FIRST, MID and LAST are 0, 1 and 2; NumPy converts the enum's members slowly.
    return over, dm_env.TimeStep(
        begun.astype(np.int32) + over,
        over.__array_namespace__().where(begun, reward, 0.0).astype(np.float32),
        (~(over & terminated)).astype(np.float32),
        observation,
    )


def stack(timesteps: list[dm_env.TimeStep]) -> dm_env.TimeStep:
    """Timesteps of single environments as the timestep of a batch."""
    return jax.tree.map(lambda *x: np.stack(x), *timesteps)
