"""Brax's environments (arXiv:2106.13281), and those of libraries with its interface."""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.adapters import trees
from envs_jax.environment import Key, restart, transition

PICTURE = 240, 320  # height and width of a picture
EPISODE_LENGTH = 1_000  # steps, the default of brax.envs.create


@dataclasses.dataclass(frozen=True, eq=False)
class Brax:
    """`Brax(brax.envs.get_environment("ant"))`: one episode, without brax's wrappers.

    `done` is a termination unless `info["truncation"]` is set. Without its wrappers brax
    has no time limit: `make` applies `time_limit`. Actions are -1 to 1.
    """

    environment: Any
    time_limit: int | None = EPISODE_LENGTH

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        state = trees.arrays(self.environment.reset(trees.raw_key(key)))
        return state, restart(state.obs)

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        del key  # brax keeps one in its state where it needs one
        # A copy: brax writes into the dictionaries of the state that it is given.
        after = self.environment.step(trees.arrays(state), action)
        after = trees.as_before(after, state)
        timestep = transition(after.reward, after.obs, after.done > 0)
        truncated = after.info.get("truncation", jnp.zeros(())) > 0
        discount = jnp.where(truncated, 1.0, timestep.discount)
        return after, timestep._replace(discount=discount)

    def observation_spec(self) -> Any:
        first = jax.eval_shape(self.initial_state, jax.random.key(0))[1]
        return jax.tree.map(trees.array_spec, first.observation)

    def action_spec(self) -> dm_env.specs.BoundedArray:
        return trees.numbers_spec((self.environment.action_size,), -1, 1)

    @property
    def render_fps(self) -> float:
        return 1.0 / float(self.environment.dt)

    def render(self, state: Any) -> jax.Array:
        """uint8 [240, 320, 3], drawn on the host by MuJoCo.

        Without a screen that needs MUJOCO_GL=egl or MUJOCO_GL=osmesa.
        """

        def draw(state: Any) -> np.ndarray:
            seen = getattr(state, "pipeline_state", state)  # Playground's has none
            with contextlib.redirect_stderr(io.StringIO()):  # a progress bar of its own
                return self.environment.render([seen], *PICTURE)[0]

        shape = jax.ShapeDtypeStruct((*PICTURE, 3), np.uint8)
        return jax.pure_callback(draw, shape, state)


@dataclasses.dataclass(frozen=True, eq=False)
class RandomizedBrax(Brax):
    """The same with another model in each episode: domain randomization.

    `randomize(model, keys [N, 2]) -> (model, axes)` is brax's and Playground's convention:
    the leaves of the model whose axis is 0 are drawn, [N, ...]. They are kept in the state.
    """

    randomize: Callable[[Any, jax.Array], tuple[Any, Any]] | None = None
    attribute: str = "sys"  # of the environment: its model

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        key, key_of_model = jax.random.split(key)
        model, axes = self.randomize(self._model, trees.raw_key(key_of_model)[None])
        drawn = jax.tree.map(
            lambda axis, x: None if axis is None else x[0],
            axes,
            model,
            is_leaf=_is_none,
        )
        with self._with(drawn):
            state, timestep = super().initial_state(key)
        return (drawn, state), timestep

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        drawn, state = state
        with self._with(drawn):
            state, timestep = super().step(key, state, action)
        return (drawn, state), timestep

    def render(self, state: Any) -> jax.Array:
        _, state = state
        return super().render(state)

    @property
    def _model(self) -> Any:
        return getattr(self.environment.unwrapped, self.attribute)

    @contextlib.contextmanager
    def _with(self, drawn: Any) -> Iterator[None]:
        """The environment has these leaves of its model while it is traced."""
        model = self._model
        other = jax.tree.map(
            lambda x, y: y if x is None else x, drawn, model, is_leaf=_is_none
        )
        setattr(self.environment.unwrapped, self.attribute, other)
        try:
            yield
        finally:
            setattr(self.environment.unwrapped, self.attribute, model)


def _is_none(x: Any) -> bool:
    return x is None


def names() -> list[str]:
    from brax import envs

    return list(envs._envs)  # brax has no public list


def make(
    name: str,
    time_limit: int | None = None,
    randomize: Callable | None = None,
    **options: Any,
) -> Brax:
    """The environment `name`; `options` go to its constructor, for example `backend`.

    `randomize` draws a model for each episode, see `RandomizedBrax`.
    """
    from brax import envs

    environment = envs.get_environment(name, **options)
    limit = EPISODE_LENGTH if time_limit is None else time_limit
    if randomize is None:
        return Brax(environment, limit)
    return RandomizedBrax(environment, limit, randomize)
