"""MinAtar's five games, rules unchanged (Young and Tian 2019, arXiv:1903.03176)."""

from envs_jax.minatar.asterix import Asterix
from envs_jax.minatar.breakout import Breakout
from envs_jax.minatar.freeway import Freeway
from envs_jax.minatar.game import Draws, Game, State
from envs_jax.minatar.seaquest import Seaquest
from envs_jax.minatar.space_invaders import SpaceInvaders

__all__ = [
    "Asterix",
    "Breakout",
    "Draws",
    "Freeway",
    "Game",
    "Seaquest",
    "SpaceInvaders",
    "State",
]
