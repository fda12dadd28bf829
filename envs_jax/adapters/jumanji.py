"""Jumanji's environments (arXiv:2306.09884), whose timesteps already follow dm_env."""

import dataclasses
import functools
import math
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.adapters import trees
from envs_jax.environment import Key, timestep


@dataclasses.dataclass(frozen=True, eq=False)
class Jumanji:
    """`Jumanji(jumanji.make("Snake-v1"))`: one episode.

    Observations are Jumanji's NamedTuples, with their action masks and step counts;
    `extras` are dropped. Where one mask is over all combinations of several choices, an
    action is one of the combinations, and the mask is flat. Most of its environments report
    their own time limit as a termination, with discount 0; a shorter `time_limit`, which
    `make` applies, is a truncation.
    """

    environment: Any
    time_limit: int | None = None

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        state, first = self.environment.reset(trees.raw_key(key))
        return trees.arrays(state), self._ours(first)

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        del key  # Jumanji keeps one in its state where it needs one
        if self._combined:
            action = jnp.stack(jnp.unravel_index(action, self._combined))
        after, timestep = self.environment.step(state, action)
        return trees.as_before(after, state), self._ours(timestep)

    def observation_spec(self) -> Any:
        """Integers are quantities here: Jumanji declares even step counts as discrete."""
        spec = _call(self.environment.observation_spec)
        first = jax.eval_shape(self.initial_state, jax.random.key(0))[1]
        return jax.tree_util.tree_map_with_path(
            lambda path, x: trees.array_spec(x, _bounds(_find(spec, path))),
            first.observation,
        )

    def action_spec(self) -> Any:
        if self._combined:
            return trees.choice_spec(math.prod(self._combined))
        spec = _call(self.environment.action_spec)
        if not spec.shape and hasattr(spec, "num_values"):
            return trees.choice_spec(spec.num_values)
        low, high = _bounds(spec)
        if np.issubdtype(spec.dtype, np.integer):
            low, high = np.asarray(low), np.asarray(high)
            if self._mask and self._mask[:-1] == spec.shape:  # MultiCVRP's is narrower
                high = np.minimum(high, self._mask[-1] - 1)
            return dm_env.specs.BoundedArray(spec.shape, np.int32, low, high, "action")
        return trees.numbers_spec(spec.shape, low, high)

    @functools.cached_property
    def _mask(self) -> tuple[int, ...]:
        """The shape of the action mask; empty if there is none."""
        seen = jax.eval_shape(
            lambda key: self.environment.reset(trees.raw_key(key))[1].observation,
            jax.random.key(0),
        )
        return getattr(getattr(seen, "action_mask", None), "shape", ())

    @functools.cached_property
    def _combined(self) -> tuple[int, ...]:
        """The numbers of choices whose combinations are masked; empty if each alone is."""
        spec = _call(self.environment.action_spec)
        if len(spec.shape) != 1 or not np.issubdtype(spec.dtype, np.integer):
            return ()
        sizes = np.broadcast_to(np.asarray(spec.maximum) + 1, spec.shape)
        return self._mask if self._mask == (*sizes.tolist(),) else ()

    def _ours(self, theirs: Any) -> dm_env.TimeStep:
        observation = _plain(theirs.observation)
        if self._combined:
            mask = observation.action_mask.reshape(-1)
            observation = observation._replace(action_mask=mask)
        return timestep(
            theirs.step_type, theirs.reward, theirs.discount, trees.arrays(observation)
        )


def names() -> list[str]:
    import jumanji

    return list(jumanji.registered_environments())


def make(name: str, time_limit: int | None = None, **options: Any) -> Jumanji:
    """The environment `name`; `options` go to its constructor."""
    import jumanji

    return Jumanji(jumanji.make(name, **options), time_limit)


def _plain(observation: Any) -> Any:
    """The observation, with a dictionary for each dataclass in it."""
    if dataclasses.is_dataclass(observation):
        fields = [x.name for x in dataclasses.fields(observation)]
        return {name: _plain(getattr(observation, name)) for name in fields}
    if hasattr(observation, "_fields"):
        return type(observation)(*map(_plain, observation))
    return observation


def _call(spec: Any) -> Any:
    """Specs are properties since Jumanji 1.0; they were methods before."""
    return spec() if callable(spec) else spec


def _find(spec: Any, path: tuple) -> Any:
    """The part of a nested spec that describes the leaf at `path`, or None."""
    for entry in path:
        name = getattr(entry, "name", getattr(entry, "key", entry))
        spec = getattr(spec, str(name), None)
    return spec


def _bounds(spec: Any) -> tuple[Any, Any] | None:
    return (spec.minimum, spec.maximum) if hasattr(spec, "minimum") else None
