"""Craftax (arXiv:2402.16801): Craftax and Craftax-Classic, symbolic or from pixels."""

import dataclasses
import importlib
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from envs_jax.adapters import trees
from envs_jax.environment import Key, restart, transition

NAMES = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Craftax:
    """One episode of `make_craftax_env_from_name(name, auto_reset=False)`.

    The library reports its own time limit as a termination. It is therefore disabled
    here, and `make` applies `time_limit` instead, as a truncation.
    """

    environment: Any
    params: Any  # Craftax's EnvParams
    time_limit: int | None = None  # default: params.max_timesteps

    def __post_init__(self):
        limit, params = self.time_limit, self.params
        own = int(params.max_timesteps)
        object.__setattr__(self, "time_limit", own if limit is None else limit)
        unlimited = params.replace(max_timesteps=trees.NO_LIMIT)
        object.__setattr__(self, "params", unlimited)

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        observation, state = self.environment.reset_env(trees.raw_key(key), self.params)
        return trees.arrays(state), restart(trees.arrays(observation))

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        observation, after, reward, done, _ = self.environment.step_env(
            trees.raw_key(key), state, action, self.params
        )
        return trees.as_before(after, state), transition(reward, observation, done)

    def observation_spec(self) -> Any:
        seen = jax.eval_shape(self.initial_state, jax.random.key(0))[1].observation
        return trees.space_spec(self.environment.observation_space(self.params), seen)

    def action_spec(self) -> Any:
        return trees.action_spec(self.environment.action_space(self.params))

    render_fps = 5

    def render(self, state: Any) -> jax.Array:
        """What the player sees, uint8 [H, W, 3]."""
        package = type(self.environment).__module__.rpartition(".envs.")[0]
        renderer = importlib.import_module(f"{package}.renderer")
        constants = importlib.import_module(f"{package}.constants")
        with jax.ensure_compile_time_eval():  # it loads textures by NumPy
            draw = renderer.make_craftax_pixel_renderer(constants.BLOCK_PIXEL_SIZE_IMG)
        return jnp.clip(draw(state), 0, 255).astype(jnp.uint8)


def names() -> list[str]:
    return list(NAMES)


def make(name: str, time_limit: int | None = None, **options: Any) -> Craftax:
    """The environment `name`; `options` are fields of its EnvParams."""
    from craftax.craftax_env import make_craftax_env_from_name

    environment = make_craftax_env_from_name(name, auto_reset=False)
    params = environment.default_params.replace(**options)
    return Craftax(environment, params, time_limit)
