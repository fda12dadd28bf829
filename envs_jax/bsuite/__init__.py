"""bsuite's tests of memory and credit assignment (arXiv:1908.03568)."""

from envs_jax.bsuite.bandit import Bandit
from envs_jax.bsuite.memory_chain import MemoryChain
from envs_jax.bsuite.umbrella import Umbrella

__all__ = ["Bandit", "MemoryChain", "Umbrella"]
