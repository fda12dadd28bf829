"""EnvPool's C++ simulators (arXiv:2206.10558) behind the host protocol.

Through its gymnasium interface: the dm_env one calls a time limit a termination.
"""

import dataclasses
import warnings
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from podracer.errors import UserError, check_at_least_one, check_range, nearest
from sebulba.host_environments.environment import Games
from sebulba.host_environments.spaces import action_spec, as_float32, spec_of

FIRST, MID, LAST = dm_env.StepType


@dataclasses.dataclass(frozen=True)
class Options:
    """Of any EnvPool environment."""

    max_episode_steps: int | None = None
    """environment steps after which an episode is cut off; by default EnvPool's own"""

    def __post_init__(self):
        if self.max_episode_steps is not None:
            check_at_least_one(max_episode_steps=self.max_episode_steps)


@dataclasses.dataclass(frozen=True)
class AtariOptions(Options):
    """Of an Atari game. Rewards are the game's: learners clip, environments do not."""

    per_life: bool = False
    """end an episode with each life (a whole game's return is then reported apart)"""
    sticky_actions: float = 0.0
    """probability that the last action is taken again (0.25: Machado et al. 2018)"""
    full_action_space: bool = False
    """all 18 actions, whatever the game"""
    noop_max: int = 30
    """up to so many no-operations begin a game"""
    frame_skip: int = 4
    """emulator frames in an environment step"""
    frame_stack: int = 4
    """frames that the agent sees at once; one crosses to the device in a step"""

    def __post_init__(self):
        super().__post_init__()
        check_range("sticky_actions", self.sticky_actions, 0.0, 1.0)
        check_at_least_one(
            noop_max=self.noop_max,
            frame_skip=self.frame_skip,
            frame_stack=self.frame_stack,
        )


def make_spec(name: str) -> Any:
    """EnvPool's own description of an environment. Raises UserError if we have it not."""
    try:
        import envpool  # heavy: only where it is used

        known = envpool.list_all_envs()
        if name not in known:
            raise UserError(
                f"no EnvPool environment is named {name!r}{nearest(name, known)}"
            )
        spec = envpool.make_spec(name)
    except ImportError as error:  # no EnvPool, or not what this simulator needs
        raise UserError(
            f"{name} is EnvPool's (pip install 'podracer[envpool]'), but: {error}"
        ) from error
    if spec.config.max_num_players > 1:
        raise UserError(f"{name} is played by several; only one player is supported")
    return spec


def default_options(name: str) -> Options:
    """The options that the environment has, at their defaults. Raises UserError."""
    return AtariOptions() if _is_atari(make_spec(name)) else Options()


def make(name: str, batch_size: int, seed: int, threads: int, options: Options):
    """A pool of B."""
    return EnvPool(name, batch_size, seed, threads, options)


def _is_atari(spec: Any) -> bool:
    return "full_action_space" in spec.config._fields


class EnvPool:
    """B environments of one name in a pool of C++ threads; their steps free the GIL.

    What EnvPool gives as float64 comes as float32. Actions beyond the spec's bounds are
    passed on: MuJoCo's motors clip them, but the control cost of gymnasium's tasks does not.

    Args:
      name: as `Pong-v5`.
      batch_size: B.
      seed: environment i is seeded with seed + i.
      threads: of the pool.
      options: `default_options(name)`, changed.

    Raises:
      UserError: there is no such environment, or it is not for one player, or its actions
        are neither discrete (one or several) nor continuous.
    """

    def __init__(
        self, name: str, batch_size: int, seed: int, threads: int, options: Options
    ):
        make_spec(name)
        import envpool

        settings = {}
        if options.max_episode_steps is not None:
            settings["max_episode_steps"] = options.max_episode_steps
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
            self._games = _GameCounter(batch_size) if options.per_life else None
        with warnings.catch_warnings():  # its spaces are float64, its numbers float32
            warnings.filterwarnings("ignore", ".*precision lowered", UserWarning)
            self._pool = envpool.make(
                name,
                env_type="gymnasium",
                num_envs=batch_size,
                num_threads=threads,
                seed=seed,
                **settings,
            )
            self._observation_spec = spec_of(self._pool.observation_space, _observation)
            self._action_spec = action_spec(name, self._pool.action_space)
        self._over = np.ones(batch_size, bool)

        if isinstance(options, AtariOptions):
            self.render = lambda: self._pool.render()[0]  # uint8 [210, 160, 3]

    def reset(self) -> dm_env.TimeStep:
        observation, _ = self._pool.reset()
        return self._timestep(observation, np.zeros(self.batch_size), False, False)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        observation, reward, terminated, truncated, info = self._pool.step(action)
        timestep = self._timestep(observation, reward, terminated, truncated)
        if self._games:
            game_over = timestep.last() & ((info["terminated"] != 0) | truncated)
            self._games.add(timestep.reward, game_over)
        return timestep

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

    def _timestep(self, observation, reward, terminated, truncated) -> dm_env.TimeStep:
        # What was over begins anew. `elapsed_step` would not show it: losing a life
        # ends an episode but not EnvPool's count.
        first = self._over
        self._over = np.broadcast_to(terminated | truncated, first.shape) & ~first
        return dm_env.TimeStep(
            np.where(first, FIRST, np.where(self._over, LAST, MID)).astype(np.int32),
            np.where(first, 0.0, reward).astype(np.float32),
            np.where(self._over & terminated, 0.0, 1.0).astype(np.float32),
            _observation(observation),
        )


class _GameCounter:
    """Returns of whole games, over the lives that they are played in."""

    def __init__(self, batch_size: int):
        self._return, self._sums = np.zeros(batch_size), Games(0.0, 0.0)

    def add(self, reward: np.ndarray, over: np.ndarray) -> None:
        self._return += reward
        self._sums = Games(
            self._sums.finished + float(over.sum()),
            self._sums.return_sum + float(self._return[over].sum()),
        )
        self._return[over] = 0.0

    def collect(self) -> Games:
        sums, self._sums = self._sums, Games(0.0, 0.0)
        return sums


def _observation(observation: Any) -> Any:
    """float64 as float32, [B, C, H, W] images as [B, H, W, C]; anything else as it is."""
    if isinstance(observation, dict):
        return {name: _observation(x) for name, x in observation.items()}
    observation = as_float32(observation)
    if observation.ndim == 4 and observation.shape[1] <= 4 < min(observation.shape[2:]):
        return np.moveaxis(observation, 1, -1)
    return observation
