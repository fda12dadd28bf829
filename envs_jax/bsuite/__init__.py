"""bsuite's tests of memory, credit assignment and exploration (arXiv:1908.03568)."""

from envs_jax.bsuite.bandit import Bandit
from envs_jax.bsuite.deep_sea import DeepSea
from envs_jax.bsuite.memory_chain import MemoryChain
from envs_jax.bsuite.umbrella import Umbrella

__all__ = ["Bandit", "DeepSea", "MemoryChain", "Umbrella"]
