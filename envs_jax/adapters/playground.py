"""MuJoCo Playground's environments (arXiv:2502.08844), which have brax's interface."""

from typing import Any

from envs_jax.adapters.brax import Brax


def names() -> list[str]:
    from mujoco_playground import registry

    return list(registry.ALL_ENVS)


def make(name: str, time_limit: int | None = None, **options: Any) -> Brax:
    """The environment `name`; `options` override fields of its config.

    The physics is MJX in JAX, on any device, unless `impl="warp"`. The default time
    limit is the config's `episode_length`.
    """
    from mujoco_playground import registry

    config = registry.get_default_config(name)
    if "impl" in config:
        options = {"impl": "jax"} | options
    environment = registry.load(name, config, options)
    return Brax(
        environment, config.episode_length if time_limit is None else time_limit
    )
