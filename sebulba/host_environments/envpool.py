"""EnvPool's C++ simulators (arXiv:2206.10558), by their ids, as `Pong-v5`.

Uses its gymnasium interface: the dm_env one reports a time limit as a termination.
"""

import dataclasses
import warnings
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer import imports
from podracer.errors import UserError, check_at_least_one, check_range, nearest
from sebulba.host_environments import checking, spaces
from sebulba.host_environments.environment import (
    Compiled,
    GameCounter,
    Games,
    next_step,
)
from sebulba.host_environments.options import check_threads

OPENGL = "which needs OpenGL: apt-get install libegl1 libopengl0"  # after 1.2.5
ATARI_FPS = 60  # emulator frames per second


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of an EnvPool environment."""

    max_episode_steps: int | None = None
    """environment steps before an episode is truncated; default: EnvPool's own"""
    check_bounds: bool = True
    """stop where an observation is outside of its declared bounds"""

    def __post_init__(self):
        if self.max_episode_steps is not None:
            check_at_least_one(max_episode_steps=self.max_episode_steps)


@dataclasses.dataclass(frozen=True)
class AtariOptions(Options):
    """Options of an Atari game. Rewards are not clipped: agents have an option for that."""

    per_life: bool = False
    """end an episode with each life; returns of whole games are reported separately"""
    sticky_actions: float = 0.0
    """probability of repeating the last action (0.25 in Machado et al. 2018)"""
    full_action_space: bool = False
    """all 18 actions instead of those that the game uses"""
    noop_max: int = 30
    """maximum number of no-op actions at the start of a game"""
    frame_skip: int = 4
    """emulator frames of an environment step; the action is repeated"""
    frame_stack: int = 4
    """number of frames in an observation; only the newest is sent to the device"""

    def __post_init__(self):
        super().__post_init__()
        check_range("sticky_actions", self.sticky_actions, 0.0, 1.0)
        check_at_least_one(
            noop_max=self.noop_max,
            frame_skip=self.frame_skip,
            frame_stack=self.frame_stack,
        )


def make_spec(name: str) -> Any:
    """EnvPool's own description of an environment. Raises UserError if there is none."""
    try:
        import envpool  # slow to import, so only where it is used

        known = envpool.list_all_envs()
        if name not in known:
            raise UserError(
                f"no EnvPool environment is named {name!r}{nearest(name, known)}"
            )
        spec = envpool.make_spec(name)
    except ImportError as error:  # no EnvPool, or not what this simulator needs
        raise UserError(_lacking(name, error)) from error
    if spec.config.max_num_players > 1:
        raise UserError(f"{name} has several players; only one player is supported")
    return spec


def _lacking(name: str, error: ImportError) -> str:
    """What to install, in one line."""
    reason = " ".join(str(error).split())
    if "GL.so" in reason:
        return f"{name} needs EnvPool ({OPENGL}): {reason}"
    if reason.startswith("No module named"):
        return f"{name} needs EnvPool ({imports.install('envpool')}): {reason}"
    return f"{name}: {reason}"  # a library of the system, which EnvPool's text names


def default_options(name: str) -> Options:
    """The environment's options, at their defaults. Raises UserError."""
    is_atari = "full_action_space" in make_spec(name).config._fields
    return AtariOptions() if is_atari else Options()


def make(name: str, batch_size: int, seed: int, threads: int, options: Options):
    """A pool of B environments."""
    return EnvPool(name, batch_size, seed, threads, options)


class EnvPool:
    """B environments of one id in a pool of C++ threads, which release the GIL.

    float64 becomes float32. Actions outside of the spec's bounds are passed on: MuJoCo
    clips them, but the control cost of gymnasium's tasks does not.

    Args:
      name: an id, as `Pong-v5`.
      batch_size: B.
      seed: environment i is seeded with seed + i.
      threads: number of threads of the pool.
      options: `default_options(name)`, with changes.

    Raises:
      UserError: there is no such environment, it has several players, or its spaces are
        not supported.
    """

    def __init__(
        self, name: str, batch_size: int, seed: int, threads: int, options: Options
    ):
        check_at_least_one(batch_size=batch_size)
        check_threads(threads)
        make_spec(name)
        import envpool

        settings = {}
        if options.max_episode_steps is not None:
            settings["max_episode_steps"] = options.max_episode_steps
        self._name, self._limit = name, options.max_episode_steps
        self.batch_size, self.frames_per_step = batch_size, 1
        self._games = None
        if isinstance(options, AtariOptions):
            settings |= {
                "episodic_life": options.per_life,
                "repeat_action_probability": options.sticky_actions,
                "full_action_space": options.full_action_space,
                "noop_max": options.noop_max,
                "frame_skip": options.frame_skip,
                "stack_num": 1,
                "render_mode": "rgb_array",  # costs nothing until it is asked for
            }
            self.frames_per_step = options.frame_skip
            self._games = GameCounter(batch_size) if options.per_life else None
        with warnings.catch_warnings():  # spaces of float64 with bounds of float32
            warnings.filterwarnings("ignore", ".*precision lowered", UserWarning)
            self._pool = envpool.make(
                name,
                env_type="gymnasium",
                num_envs=batch_size,
                num_threads=threads,
                seed=seed,
                **settings,
            )
            space = self._pool.observation_space
            spaces.check_supported(name, space)
            self._observation_spec = spaces.spec_of(space, _observation)
            self._action_spec = spaces.action_spec(name, self._pool.action_space)
        declared = checking.of_spec(self._observation_spec)
        batch = (batch_size,)
        self._check = checking.checker(name, declared, batch, options.check_bounds)
        self._check_action = checking.action_checker(name, self._action_spec, batch)
        self._over = np.ones(batch_size, bool)  # as in NextStepReset

        if isinstance(options, AtariOptions):
            self.render = lambda: self._pool.render()[0]  # uint8 [210, 160, 3]
            self.render_fps = ATARI_FPS / options.frame_skip

    def reset(self) -> dm_env.TimeStep:
        observation, _ = self._pool.reset()
        none = np.zeros(self.batch_size, bool)
        self._over, timestep = next_step(
            self._over, _observation(observation), 0.0, none, none
        )
        self._check(timestep.observation, timestep.reward)
        return timestep

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._check_action(action)
        self._over, timestep, recorded = self._received(
            self._over, action, self._pool.step(action)
        )
        self._check(timestep.observation, timestep.reward)
        self._check_limit(recorded)
        if self._games:
            self._games.add(recorded.reward, recorded.game_over)
        return timestep

    def compiled(self) -> Compiled | None:
        """EnvPool's functions for XLA; None where they cannot be called.

        That is where jaxlib is older than they are (0.7, for EnvPool 1.2), on other systems
        than Linux, and where a simulator has arrays of 64 bits, which JAX would not keep.
        """
        arrays = self._pool.spec.state_array_spec, self._pool.spec.action_array_spec
        if any(x.dtype.itemsize > 4 for specs in arrays for x in specs.values()):
            return None
        jax.devices()  # what EnvPool registers before JAX has started may end its start
        try:
            handle, _, _, simulate = self._pool.xla()
        except RuntimeError:
            return None
        bounds = self._action_spec.minimum, self._action_spec.maximum
        shape = (self.batch_size, *self._action_spec.shape)
        low, high = (np.broadcast_to(x, shape) for x in bounds)
        is_discrete = np.issubdtype(self._action_spec.dtype, np.integer)
        dtype = self._pool.spec.action_array_spec["action"].dtype  # int16 in MultiCVRP

        def step(state, action):
            handle, over = state
            # Checked here for its shape and dtype, with valid values. `stepped` checks its
            # own values, which are clipped because they may crash a simulator.
            self._check_action(np.resize(low, action.shape).astype(action.dtype))
            taken = jnp.clip(action, low, high) if is_discrete else action
            handle, returned = simulate(handle, taken.astype(dtype))
            over, timestep, recorded = self._received(over, action, returned)
            return (handle, over), timestep, recorded

        return Compiled((handle, self._over), step)

    def stepped(self, timestep: dm_env.TimeStep, recorded: "Recorded") -> None:
        self._check(timestep.observation, timestep.reward)
        self._check_limit(recorded)
        for action in recorded.action:
            self._check_action(action)
        if self._games:
            for row in zip(recorded.reward, recorded.game_over, strict=True):
                self._games.add(*row)

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> specs.BoundedArray:
        return self._action_spec

    def finished_games(self) -> Games | None:
        return self._games and self._games.collect()

    def lost_episodes(self) -> int:
        return 0

    def close(self) -> None:
        self._pool.close()

    def _received(self, over: Any, action: Any, returned: tuple) -> tuple:
        """(over, TimeStep, Recorded) of what the pool returned, in NumPy's arrays or JAX's."""
        observation, reward, terminated, truncated, info = returned
        # EnvPool's `elapsed_step` would not show each reset: it keeps counting where only
        # a life was lost.
        over, timestep = next_step(
            over, _observation(observation), reward, terminated, truncated
        )
        game_over = over
        if self._games:
            game_over = over & ((info["terminated"] != 0) | truncated)
        elapsed = info["elapsed_step"]
        return (
            over,
            timestep,
            Recorded(action, timestep.reward, game_over, truncated, elapsed),
        )

    def _check_limit(self, recorded: "Recorded") -> None:
        """Raises UserError where an episode outlives its limit: many tasks ignore it."""
        if self._limit is None:
            return
        late = recorded.elapsed > self._limit
        if (late & ~recorded.truncated).any():  # football is cut off one step late
            raise UserError(
                f"{self._name} ignores max_episode_steps, which is {self._limit}: leave "
                "it out, or use gymnasium's environment, if it has one (--env gym:ID)"
            )


class Recorded(NamedTuple):
    """What the host needs of a step, [B], or of the steps of an unroll, [T, B]."""

    action: Any  # [B, ...], as the agent chose it
    reward: Any
    game_over: Any
    truncated: Any
    elapsed: Any  # environment steps of the episode


def _observation(observation: Any) -> Any:
    """float64 as float32, images [B, C, H, W] as [B, H, W, C]; all else unchanged."""
    if isinstance(observation, dict):
        return {name: _observation(x) for name, x in observation.items()}
    observation = spaces.as_float32(observation)
    if observation.ndim == 4 and observation.shape[1] <= 4 < min(observation.shape[2:]):
        return spaces.channels_last(observation)
    return observation
