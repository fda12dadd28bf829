"""The training worlds of Learned Policy Gradient: chains and grids (arXiv:2007.08794)."""

from envs_jax.lpg.chain import LPGChain
from envs_jax.lpg.distribution import FAMILIES, TaskDistribution
from envs_jax.lpg.grid import LPGGrid

__all__ = ["FAMILIES", "LPGChain", "LPGGrid", "TaskDistribution"]
