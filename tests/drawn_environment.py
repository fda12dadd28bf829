"""An environment whose observations have a structure drawn from its seed."""

import collections
import dataclasses
import functools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from envs_jax.environment import restart, transition
from podracer import starts

LENGTH = 5


def drawn(chance: random.Random, depth: int = 0) -> Any:
    """A spec, or a dictionary, tuple or NamedTuple of them."""
    kind = chance.choice(["array"] * depth + ["text", "integers", "tuple", "named"])
    if kind == "array":
        return array(chance)
    parts = [drawn(chance, depth + 1) for _ in range(chance.choice([1, 2, 3]))]
    if kind == "tuple":
        return tuple(parts)
    if kind == "named":
        names = chance.sample(["zeta", "action", "image", "b"], len(parts))
        return collections.namedtuple("Observation", names)(*parts)
    of_text, of_integers = ["b", "a b", "0", "[x]"], [10, 2, -1, 0]
    keys = of_text if kind == "text" else of_integers
    return dict(zip(chance.sample(keys, len(parts)), parts))


def array(chance: random.Random) -> specs.Array:
    shape = chance.choice([(), (1,), (2, 3), (3,)])
    return chance.choice(
        [
            specs.Array(shape, np.float32),
            specs.BoundedArray(shape, np.float32, -1.0, 1.0),
            specs.BoundedArray(shape, np.int32, -2, 7),
            specs.BoundedArray(shape, bool, False, True),
            specs.DiscreteArray(7, np.int32),
            starts.Choice(7, np.int32, start=-3),
            starts.Choices(shape, np.int32, 0, 6, start=np.full(shape, 2)),
        ]
    )


@functools.cache  # its NamedTuple types are the same at each call
def spec_of(seed: int) -> Any:
    return drawn(random.Random(seed))


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Every entry of the observation is the number of the step, within its bounds."""

    seed: int = 0

    def initial_state(self, key):
        return jnp.int32(0), restart(self._observation(jnp.int32(0)))

    def step(self, key, state, action):
        state = state + 1
        reward = jnp.where(action == state % 2, 1.0, -1.0)
        return state, transition(reward, self._observation(state), state >= LENGTH)

    def _observation(self, state):
        def entries(spec):
            x = jnp.minimum(state, getattr(spec, "maximum", LENGTH))
            return jnp.full(spec.shape, x.astype(spec.dtype))

        return jax.tree.map(entries, self.observation_spec())

    def observation_spec(self) -> Any:
        return spec_of(self.seed)

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2)
