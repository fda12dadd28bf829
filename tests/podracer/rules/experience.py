"""Trajectories for tests of rules: episodes that end in all ways, in a random network."""

import dm_env
import jax
import jax.numpy as jnp

from podracer.agent import ActorOutput, Trajectory
from podracer.networks.policies import Categorical

FIRST, MID, LAST = map(int, dm_env.StepType)

# Of environment 0 an episode terminates and of 1 one is truncated; 2 loses one, where FIRST
# follows MID; 3 begins at the LAST of an episode that terminated before, and ends at one.
STEP_TYPE = [
    [FIRST, MID, MID, LAST],
    [MID, MID, MID, FIRST],
    [LAST, LAST, MID, MID],
    [FIRST, FIRST, FIRST, MID],
    [MID, MID, MID, MID],
    [MID, MID, MID, LAST],
]
DISCOUNT = [
    [1, 1, 1, 0],
    [1, 1, 1, 1],
    [0, 1, 1, 1],
    [1, 1, 1, 1],
    [1, 1, 1, 1],
    [1, 1, 1, 0],
]
LENGTH, BATCH_SIZE = 5, 4


def some_trajectory(key, observations=3, actions=2, actor_state=()):
    """T = 5 steps in B = 4 environments, with rewards at every step, void ones too."""
    keys = jax.random.split(key, 4)
    timesteps = dm_env.TimeStep(
        jnp.array(STEP_TYPE, jnp.int32),
        jax.random.normal(keys[0], (LENGTH + 1, BATCH_SIZE)),
        jnp.array(DISCOUNT, jnp.float32),
        jax.random.normal(keys[1], (LENGTH + 1, BATCH_SIZE, observations)),
    )
    shape = (LENGTH, BATCH_SIZE)
    action = jax.random.randint(keys[2], shape, 0, actions)
    policy = Categorical(jax.random.normal(keys[3], (*shape, actions)))
    return Trajectory(timesteps, ActorOutput(action, policy), actor_state)
