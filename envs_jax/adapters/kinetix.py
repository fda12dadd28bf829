"""Kinetix (arXiv:2410.23208): 2D physics tasks, one level or random ones."""

import dataclasses
from pathlib import Path
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from envs_jax.adapters import trees
from envs_jax.environment import Key, restart, transition

RANDOM = "random-"  # and a size: a new level in every episode
SIZES = ("s", "m", "l")


@dataclasses.dataclass(frozen=True, eq=False)
class Kinetix:
    """One episode of a `KinetixEnv` that has a `reset_function`, without its resets.

    The library reports its own time limit as a termination. It is therefore disabled
    here, and `make` applies `time_limit` instead, as a truncation.
    """

    environment: Any
    params: Any  # Kinetix's EnvParams
    time_limit: int | None = None  # default: params.max_timesteps

    def __post_init__(self):
        limit, params = self.time_limit, self.params
        own = int(params.max_timesteps)
        object.__setattr__(self, "time_limit", own if limit is None else limit)
        unlimited = params.replace(max_timesteps=trees.NO_LIMIT)
        object.__setattr__(self, "params", unlimited)

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        observation, state = self.environment.reset_env(
            trees.raw_key(key), self.params, None
        )
        return trees.arrays(state), restart(trees.arrays(observation))

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        observation, after, reward, done, _ = self.environment.step_env(
            trees.raw_key(key), state, action, self.params
        )
        return (
            trees.as_before(after, state),
            transition(reward, trees.arrays(observation), done),
        )

    def observation_spec(self) -> Any:
        seen = jax.eval_shape(self.initial_state, jax.random.key(0))[1].observation
        return jax.tree.map(trees.array_spec, seen)

    def action_spec(self) -> Any:
        return trees.action_spec(self.environment.action_space(self.params))

    @property
    def render_fps(self) -> float:
        return 1 / (self.params.dt * self.environment.static_env_params.frame_skip)

    def render(self, state: Any) -> jax.Array:
        """The scene, uint8 [H, W, 3]."""
        from kinetix.render.renderer_pixels import make_render_pixels

        draw = make_render_pixels(self.params, self.environment.static_env_params)
        picture = jnp.clip(draw(state), 0, 255).astype(jnp.uint8)
        return jnp.flip(jnp.swapaxes(picture, 0, 1), 0)  # [x, y] with y up, as it draws


def names() -> list[str]:
    """Kinetix's own levels, as "m/h1_car_left", and random ones of each size."""
    import kinetix

    folder = Path(kinetix.__file__).parent / "levels"
    levels = sorted(file.relative_to(folder) for file in folder.glob("[sml]/*.json"))
    random = [RANDOM + size for size in SIZES]
    return [*random, *(level.with_suffix("").as_posix() for level in levels)]


def make(
    name: str,
    time_limit: int | None = None,
    actions: str = "multi_discrete",
    observations: str = "symbolic_flat",
    **options: Any,
) -> Kinetix:
    """The level, or distribution of levels, of that name.

    Args:
      name: one of `names()`.
      time_limit: by default the level's own.
      actions: "continuous", "discrete" or "multi_discrete".
      observations: "symbolic_flat", "symbolic_entity" or "pixels".
      **options: other fields of its EnvParams, as `dense_reward_scale`.
    """
    from kinetix.environment import ActionType, ObservationType, make_kinetix_env

    reset, params, static = _levels(name)
    params = params.replace(**options)
    environment = make_kinetix_env(
        ActionType.from_string(actions),
        ObservationType.from_string(observations),
        reset,
        params,
        static,
        auto_reset=False,
    )
    return Kinetix(environment, params, time_limit)


def _levels(name: str) -> tuple[Any, Any, Any]:
    """(key -> state, EnvParams, StaticEnvParams)."""
    from kinetix.environment import EnvParams, static_env_params_from_size
    from kinetix.environment.ued.ued import make_reset_fn_sample_kinetix_level
    from kinetix.util.saving import load_from_json_file

    if name.startswith(RANDOM):
        params = EnvParams()
        static = static_env_params_from_size(name.removeprefix(RANDOM))
        return make_reset_fn_sample_kinetix_level(params, static), params, static
    level, static, params = load_from_json_file(f"{name}.json")
    return lambda key: level, params, static
