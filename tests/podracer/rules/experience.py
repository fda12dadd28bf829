"""Trajectories for tests of rules: episodes that end in all ways, in a random network."""

import dm_env
import jax
import numpy as np

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


def some_trajectory(seed, observations=3, actions=2, actor_state=()):
    """T = 5 steps in B = 4 environments, with rewards at every step, void ones too."""
    random, shape = np.random.default_rng(seed), (LENGTH, BATCH_SIZE)
    timesteps = dm_env.TimeStep(
        np.array(STEP_TYPE, np.int32),
        normal(random, LENGTH + 1, BATCH_SIZE),
        np.array(DISCOUNT, np.float32),
        normal(random, LENGTH + 1, BATCH_SIZE, observations),
    )
    action = np.array(random.integers(actions, size=shape), np.int32)
    policy = Categorical(normal(random, *shape, actions))
    return Trajectory(timesteps, ActorOutput(action, policy), actor_state)


def normal(random, *shape):
    return np.array(random.normal(size=shape), np.float32)


def noisy(tree, seed=0, scale=0.5):
    """The tree with noise in each leaf."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: np.array(
            np.asarray(x) + scale * random.normal(size=x.shape), x.dtype
        ),
        tree,
    )
