"""Navix (arXiv:2407.19396): MiniGrid's environments in JAX."""

import dataclasses
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from envs_jax.adapters import trees
from envs_jax.environment import Key, restart, transition

TRUNCATION, TERMINATION = 1, 2  # Navix's step types; 0 is any other step


@dataclasses.dataclass(frozen=True, eq=False)
class Navix:
    """`Navix(navix.make("Navix-Empty-8x8-v0"))`: one episode of it.

    Navix distinguishes truncations from terminations. Its state holds an image of the
    empty grid, 3 kB per cell, which is dropped here and recomputed where it is used.
    Symbolic observations are converted to int32: networks take bytes for pixels.
    """

    environment: Any

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        first = trees.arrays(self.environment.reset(trees.raw_key(key)))
        return _without_picture(first), restart(self._seen(first))

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        del key  # the library keeps one in its state where it needs one
        # Not `step`, which would also compute a reset.
        after = self.environment._step(_with_picture(state), action)
        ended = after.step_type == TERMINATION
        timestep = transition(after.reward, self._seen(after), ended)
        last = jnp.int32(dm_env.StepType.LAST)
        step_type = jnp.where(after.step_type == TRUNCATION, last, timestep.step_type)
        return (
            trees.as_before(_without_picture(after), state),
            timestep._replace(step_type=step_type),
        )

    def observation_spec(self) -> Any:
        seen = jax.eval_shape(self.initial_state, jax.random.key(0))[1].observation
        return trees.array_spec(
            seen
        )  # its spaces' bounds are not those of what it shows

    def _seen(self, timestep: Any) -> jax.Array:
        pictures = getattr(self.environment.observation_fn, "__name__", "")
        if pictures.startswith("rgb"):
            return timestep.observation
        return timestep.observation.astype(jnp.int32)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return trees.choice_spec(len(self.environment.action_set))

    render_fps = 5

    def render(self, state: Any) -> jax.Array:
        """The whole grid from above, uint8 [H, W, 3]."""
        from navix import observations

        return observations.rgb(_with_picture(state).state)


def names() -> list[str]:
    import navix

    return list(navix.registry())


def make(name: str, time_limit: int | None = None, **options: Any) -> Navix:
    """The environment `name`; `options` go to its constructor.

    The time limit is Navix's `max_steps`, whose default is its own. `observation_fn` is one of
    `navix.observations`, by default `symbolic`, the whole grid.
    """
    import navix

    if time_limit is not None:
        options["max_steps"] = time_limit
    return Navix(navix.make(name, **options))


def _without_picture(timestep: Any) -> Any:
    """The parts of a Navix timestep that the next step needs."""
    return timestep.replace(
        state=timestep.state.replace(cache=None), observation=None, info={}
    )


def _with_picture(timestep: Any) -> Any:
    from navix.rendering.cache import RenderingCache

    state = timestep.state
    return timestep.replace(state=state.replace(cache=RenderingCache.init(state.grid)))
