"""The list of agents: each is a module here, read by `podracer.agents.algorithm.of`."""

from importlib import import_module

NAMES = (
    "impala",
    "ppo",
    "batch_ppo",
    "pqn",
    "dqn",
    "sac",
    "td3",
    "muzero",
    "lpg",
    "disco",
)
AGENTS = {name: import_module(f"podracer.agents.{name}") for name in NAMES}
