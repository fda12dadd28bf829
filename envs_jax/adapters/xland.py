"""XLand-MiniGrid (arXiv:2312.12044): MiniGrid's tasks, and XLand's rules and goals."""

import dataclasses
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.adapters import trees
from envs_jax.environment import Key, timestep

TILE = 32  # pixels of a cell's side in the library's pictures


@dataclasses.dataclass(frozen=True, eq=False)
class XLand:
    """`XLand(*xminigrid.make("MiniGrid-Empty-8x8"))`: one episode, without resets.

    With a `benchmark`, one of the library's, every episode draws a rule set of its own;
    without one, an XLand environment keeps the rule set of `params`. The time limit is
    `params.max_steps`, which the reward depends on; it is a truncation. Observations
    are converted to int32: networks take bytes for pixels.
    """

    environment: Any
    params: Any  # the library's EnvParams
    benchmark: Any = None

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        task_key, key = jax.random.split(trees.raw_key(key))
        params = self.params
        if self.benchmark is not None:
            params = params.replace(ruleset=self.benchmark.sample_ruleset(task_key))
        first = self.environment.reset(params, key)
        return trees.arrays(first.state), _ours(first)

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        del key  # the library keeps one in its state where it needs one
        after = self.environment.step(self.params, self._theirs(state), action)
        return trees.as_before(after.state, state), _ours(after)

    def observation_spec(self) -> Any:
        """Tile and colour of each cell in view, int32 [view, view, 2], from 0."""
        from xminigrid.core.constants import NUM_COLORS, NUM_TILES

        seen = jax.eval_shape(self.initial_state, jax.random.key(0))[1].observation
        highest = np.array([NUM_TILES - 1, NUM_COLORS - 1])
        return jax.tree.map(lambda x: trees.array_spec(x, (0, highest)), seen)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return trees.choice_spec(self.environment.num_actions(self.params))

    render_fps = 5

    def render(self, state: Any) -> jax.Array:
        """The whole grid from above, uint8 [H, W, 3], drawn on the host by NumPy."""

        def draw(state: Any) -> np.ndarray:
            seen = self._theirs(jax.tree.map(np.asarray, state))
            return self.environment.render(self.params, seen)

        height, width = state.grid.shape[:2]
        shape = jax.ShapeDtypeStruct((height * TILE, width * TILE, 3), np.uint8)
        return jax.pure_callback(draw, shape, state)

    def _theirs(self, state: Any) -> Any:
        from xminigrid.types import StepType, TimeStep

        return TimeStep(state, StepType.MID, 0.0, 1.0, None)  # it reads only the state


def names() -> list[str]:
    import xminigrid

    return list(xminigrid.registered_environments())


def make(
    name: str,
    time_limit: int | None = None,
    benchmark: str | None = None,
    **options: Any,
) -> XLand:
    """The environment `name`.

    Args:
      name: as the library registers it.
      time_limit: its `max_steps`.
      benchmark: a set of rule sets by the library's name, for example "small-1m",
        downloaded when first used.
      **options: other fields of its EnvParams, for example `view_size`.
    """
    import xminigrid
    from xminigrid import benchmarks

    known = benchmarks.registered_benchmarks()
    if benchmark is not None and benchmark not in known:
        raise ValueError(f"benchmark is {benchmark!r}; known: {', '.join(known)}")
    if time_limit is not None:
        options["max_steps"] = time_limit
    environment, params = xminigrid.make(name, **options)
    rules = None if benchmark is None else benchmarks.load_benchmark(benchmark)
    return XLand(environment, params, rules)


def _ours(theirs: Any) -> dm_env.TimeStep:
    seen = jax.tree.map(lambda x: x.astype(jnp.int32), theirs.observation)
    return timestep(theirs.step_type, theirs.reward, theirs.discount, seen)
