"""The agents by name: each is a module with a `Config` and `make_agent`."""

from podracer.agents import batch_ppo, disco, impala, lpg, muzero, ppo, pqn

AGENTS = {
    "impala": impala,
    "ppo": ppo,
    "batch_ppo": batch_ppo,
    "pqn": pqn,
    "muzero": muzero,
    "lpg": lpg,
    "disco": disco,
}
