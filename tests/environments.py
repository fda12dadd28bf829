"""Small environments that make a single property visible."""

import dataclasses
import os
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from envs_jax.environment import restart, transition

FIRST, MID, LAST = dm_env.StepType


@dataclasses.dataclass(frozen=True)
class Counter:
    """The observation counts steps since FIRST; an episode has `length` of them.

    The reward is the observation that it leads to, so that a reward paired with the
    wrong action is seen.
    """

    length: int = 5

    def initial_state(self, key):
        return jnp.int32(0), restart(jnp.zeros(1))

    def step(self, key, state, action):
        state = state + 1
        observation = state.astype(jnp.float32)
        return state, transition(observation, observation[None], state >= self.length)

    def observation_spec(self) -> Any:
        return specs.Array((1,), np.float32)

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2)


@dataclasses.dataclass(frozen=True)
class Wanderer(Counter):
    """It changes the directory of the process, as some simulators do."""

    place: str = "/"

    def initial_state(self, key):
        os.chdir(self.place)
        return super().initial_state(key)


@dataclasses.dataclass(frozen=True)
class Bandit(Counter):
    """Action 1 pays, action 0 costs, nothing else matters."""

    def step(self, key, state, action):
        state = state + 1
        reward = jnp.where(action == 1, 1.0, -1.0)
        return state, transition(reward, jnp.zeros(1), state >= self.length)


@dataclasses.dataclass(frozen=True)
class Bandits(Counter):
    """The same for two choices at once, of 2 and of 3: it pays if both are the last."""

    def step(self, key, state, action):
        state = state + 1
        reward = jnp.where(jnp.all(action == jnp.array([1, 2])), 1.0, -1.0)
        return state, transition(reward, jnp.zeros(1), state >= self.length)

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.int32, 0, [1, 2])


@dataclasses.dataclass(frozen=True)
class Composite(Counter):
    """An action of two parts, a choice and two numbers: it pays for choice 2 and 0.5 each."""

    def step(self, key, state, action):
        state = state + 1
        missed = jnp.sum(jnp.square(action["amount"] - 0.5))
        reward = jnp.where(action["choice"] == 2, 1.0, 0.0) - missed
        return state, transition(reward, jnp.zeros(1), state >= self.length)

    def action_spec(self) -> Any:
        return {
            "choice": specs.DiscreteArray(3),
            "amount": specs.BoundedArray((2,), np.float32, -1.0, 1.0),
        }


@dataclasses.dataclass(frozen=True)
class Forbidding(Counter):
    """Two of eight actions are allowed, other ones in each step; the higher of them pays 1.

    What is forbidden is rewarded with NaN, which stops a run. At the end nothing is allowed.
    """

    def initial_state(self, key):
        mask = self._mask(key)
        return (jnp.int32(0), mask), restart({"action_mask": mask})

    def step(self, key, state, action):
        count, mask = state
        highest = mask.size - 1 - jnp.argmax(mask[::-1])
        reward = jnp.where(mask[action], jnp.float32(action == highest), jnp.nan)
        ends = count + 1 >= self.length
        mask = jnp.where(ends, False, self._mask(key))
        return (count + 1, mask), transition(reward, {"action_mask": mask}, ends)

    def _mask(self, key):
        return jnp.zeros(8, bool).at[jax.random.permutation(key, 8)[:2]].set(True)

    def observation_spec(self) -> Any:
        return {"action_mask": specs.BoundedArray((8,), bool, False, True)}

    def action_spec(self) -> Any:
        return specs.DiscreteArray(8)


@dataclasses.dataclass(frozen=True)
class Stuck(Forbidding):
    """Nothing is allowed from the second step on, and nothing is rewarded."""

    def step(self, key, state, action):
        (count, _), timestep = super().step(key, state, action)
        mask = jnp.zeros(8, bool)
        observation = {"action_mask": mask}
        timestep = timestep._replace(observation=observation, reward=jnp.float32(0.0))
        return (count, mask), timestep


@dataclasses.dataclass(frozen=True)
class Privileged(Counter):
    """The number of the step in `state`, and noise in `privileged_state`."""

    def initial_state(self, key):
        return jnp.int32(0), restart(self._observation(key, jnp.int32(0)))

    def step(self, key, state, action):
        state = state + 1
        observation = self._observation(key, state)
        reward = jnp.float32(action == state % 2)
        return state, transition(reward, observation, state >= self.length)

    def _observation(self, key, count):
        noise = jax.random.normal(key, (2,))
        return {"privileged_state": noise, "state": count[None].astype(jnp.float32)}

    def observation_spec(self) -> Any:
        return {
            "privileged_state": specs.Array((2,), np.float32),
            "state": specs.Array((1,), np.float32),
        }


@dataclasses.dataclass(frozen=True)
class Mixed(Counter):
    """An image, numbers and a mask; the action pays that the image's row and a number name."""

    def initial_state(self, key):
        observation = self._observation(key)
        return (jnp.int32(0), observation), restart(observation)

    def step(self, key, state, action):
        count, seen = state
        best = (seen["pixels"][0, 0, 0] > 0) + 2 * (seen["state"][0] > 0)
        reward = jnp.where(seen["action_mask"][action], action == best, jnp.nan)
        count, observation = count + 1, self._observation(key)
        timestep = transition(jnp.float32(reward), observation, count >= self.length)
        return (count, observation), timestep

    def _observation(self, key):
        keys = jax.random.split(key, 3)
        pixels = 255 * jax.random.bernoulli(keys[1], 0.5, (3, 3, 1))
        return {
            "action_mask": jax.random.bernoulli(keys[0], 0.7, (4,)).at[0].set(True),
            "pixels": pixels.astype(jnp.uint8),
            "state": jax.random.normal(keys[2], (2,)),
        }

    def observation_spec(self) -> Any:
        return {
            "action_mask": specs.BoundedArray((4,), bool, False, True),
            "pixels": specs.BoundedArray((3, 3, 1), np.uint8, 0, 255),
            "state": specs.Array((2,), np.float32),
        }

    def action_spec(self) -> Any:
        return specs.DiscreteArray(4)


@dataclasses.dataclass(frozen=True)
class Explosive(Counter):
    """The reward is NaN from a given step of the first episode on."""

    at: int = 7

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        reward = jnp.where(state >= self.at, jnp.nan, 0.0)
        return state, timestep._replace(reward=reward)


class HostCounter:
    """A batch of counters on the host, as `sebulba.host_environments` describes.

    Environment i starts at i, so that ends of episodes come at every position. The
    observation is the count. Step `fail_at` raises `error`; step 5 waits for `hang` to be set.
    """

    frames_per_step = 2

    def __init__(
        self, batch_size=4, length=5, fail_at=None, hang=None, error=RuntimeError
    ):
        self.batch_size, self._length = batch_size, length
        self._fail_at, self._hang, self._steps = fail_at, hang, 0
        self._error, self.closed = error, False

    def reset(self):
        self._count = np.arange(self.batch_size) % self._length
        return self._timestep(np.full(self.batch_size, FIRST))

    def step(self, action):
        assert isinstance(action, np.ndarray) and action.shape == (self.batch_size,)
        self._steps += 1
        if self._steps == self._fail_at:
            raise self._error("the simulator broke")
        if self._hang and self._steps == 5:
            self._hang.wait(60)
        over = self._count == self._length
        self._count = np.where(over, 0, self._count + 1)
        last = self._count == self._length
        return self._timestep(np.where(over, FIRST, np.where(last, LAST, MID)))

    def _timestep(self, step_type):
        count = self._count.astype(np.float32)
        return dm_env.TimeStep(
            step_type.astype(np.int32),
            np.where(step_type == FIRST, 0, count).astype(np.float32),
            np.where(step_type == LAST, 0, 1).astype(np.float32),
            count[:, None],
        )

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)

    def lost_episodes(self):
        return 0

    def finished_games(self):
        return None

    def close(self):
        self.closed = True


def rows(tree, index):
    """The rows of a tree's leaves at an index or slice."""
    return jax.tree.map(lambda x: x[index], tree)
