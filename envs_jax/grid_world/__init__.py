"""MiniGrid's worlds with walls, keys and doors (arXiv:2306.13831)."""

from envs_jax.grid_world.environments import DoorKey, Empty, FourRooms, Memory

__all__ = ["DoorKey", "Empty", "FourRooms", "Memory"]
