"""Atari games in ale-py's vector environment (arXiv:1207.4708): `ale:pong`."""

from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from podracer import imports
from podracer.errors import UserError, check_at_least_one, nearest
from sebulba.host_environments import checking, spaces
from sebulba.host_environments.environment import (
    GameCounter,
    Games,
    NextStepReset,
)
from sebulba.host_environments.envpool import AtariOptions
from sebulba.host_environments.options import check_threads

INSTALL = imports.install("ale")


def default_options(name: str) -> AtariOptions:
    """The same options as EnvPool's Atari games. Raises UserError."""
    _check_game(name)
    return AtariOptions()


def make(name: str, batch_size: int, seed: int, threads: int, options: AtariOptions):
    """A vector of B environments."""
    return Ale(name, batch_size, seed, threads, options)


def _check_game(name: str) -> None:
    """Raises UserError unless ale-py has the game."""
    try:
        from ale_py import roms
    except ImportError as error:
        raise UserError(f"ale:{name} needs ale-py ({INSTALL}): {error}") from error
    known = roms.get_all_rom_ids()
    if name not in known:
        raise UserError(
            f"no game of ale-py is named {name!r} (names are as ale:ms_pacman)"
            f"{nearest(name.lower(), known)}"
        )


class Ale:
    """B games of one name in a C++ vector, whose threads release the GIL.

    The vector resets a game in the step after its end, so LAST has its own observation and
    FIRST follows. Its own `episodic_life` would restart the game with each life. Here, with
    `per_life`, the game continues: FIRST of a life is what follows one step of FIRE (no-op
    where the game has none).

    Args:
      name: ale-py's name of the game, as `pong`.
      batch_size: B.
      seed: environment i is seeded with seed + i.
      threads: number of threads of the vector.
      options: EnvPool's Atari options; the default time limit is 27,000 steps here, too.

    Raises:
      UserError: ale-py is not installed, or has no such game.
    """

    def __init__(
        self, name: str, batch_size: int, seed: int, threads: int, options: AtariOptions
    ):
        check_at_least_one(batch_size=batch_size)
        check_threads(threads)
        _check_game(name)
        from ale_py import Action
        from ale_py.vector_env import AtariVectorEnv

        limit = options.max_episode_steps or 27_000
        self.batch_size, self.frames_per_step = batch_size, options.frame_skip
        self._seed = seed
        self._vector = AtariVectorEnv(
            name,
            batch_size,
            num_threads=min(threads, batch_size),
            max_num_frames_per_episode=limit * options.frame_skip,
            repeat_action_probability=options.sticky_actions,
            full_action_space=options.full_action_space,
            noop_max=options.noop_max,
            frameskip=options.frame_skip,
            stack_num=1,
            life_loss_info=options.per_life,
            reward_clipping=False,
            autoreset_mode="NextStep",
        )
        actions = [*self._vector.ale.get_action_set()]
        self._fire = np.int32(
            actions.index(Action.FIRE) if Action.FIRE in actions else 0
        )
        height, width = self._vector.single_observation_space.shape[1:]
        self._observation_spec = specs.BoundedArray(
            (height, width, 1), np.uint8, 0, 255
        )
        self._action_spec = spaces.action_spec(name, self._vector.single_action_space)
        batch = (batch_size,)
        declared = checking.of_spec(self._observation_spec)
        self._check = checking.checker(f"ale:{name}", declared, batch)
        self._check_action = checking.action_checker(name, self._action_spec, batch)
        self._episodes = NextStepReset(batch_size)
        self._ended = np.ones(batch_size, bool)  # at LAST
        # Ends that came with FIRST: [terminated, truncated]
        self._owed = np.zeros((2, batch_size), bool)
        self._games = GameCounter(batch_size) if options.per_life else None
        self._frame = np.zeros(batch_size, int)  # of the game

    def reset(self) -> dm_env.TimeStep:
        observation, _ = self._vector.reset(seed=self._seed)
        nothing = np.zeros(self.batch_size, bool)
        return self._timestep(observation, nothing, nothing, nothing)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._check_action(action)
        action = np.where(self._ended, self._fire, action).astype(np.int32)
        observation, reward, terminated, truncated, info = self._vector.step(action)
        if self._games:
            self._count(reward, info["episode_frame_number"])
        return self._timestep(observation, reward, terminated, truncated)

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> specs.BoundedArray:
        return self._action_spec

    def finished_games(self) -> Games | None:
        return self._games and self._games.collect()

    def lost_episodes(self) -> int:
        return 0

    def close(self) -> None:
        self._vector.close()
        self._vector = None  # frees the emulators

    def _count(self, reward: np.ndarray, frame: np.ndarray) -> None:
        """Adds a step to the games' returns; a game ends where the next one begins."""
        self._games.add(np.zeros(self.batch_size), frame < self._frame)
        self._games.add(reward, np.zeros(self.batch_size, bool))
        self._frame = frame.copy()

    def _timestep(self, observation, reward, terminated, truncated) -> dm_env.TimeStep:
        observation = spaces.channels_last(observation)
        self._check(observation, reward)
        # A game that ends in the first step of a life has that step as FIRST already: the
        # next step, the reset, is its LAST.
        ends = np.stack([terminated, truncated]) | self._owed
        self._owed = ends & self._ended
        timestep = self._episodes.timestep(observation, reward, *ends)
        self._ended = timestep.last()
        return timestep
