"""MuJoCo Playground's environments (arXiv:2502.08844), which have brax's interface."""

from typing import Any

from envs_jax.adapters.brax import Brax, RandomizedBrax


def names() -> list[str]:
    from mujoco_playground import registry

    return list(registry.ALL_ENVS)


def make(
    name: str, time_limit: int | None = None, randomize: bool = False, **options: Any
) -> Brax:
    """The environment `name`; `options` override fields of its config.

    With `randomize`, each episode has a model drawn by Playground's own function for this
    environment (domain randomization); ValueError where it has none.

    The physics is MJX in JAX, on any device, unless `impl="warp"`. The default time
    limit is the config's `episode_length`.
    """
    from mujoco_playground import registry

    config = registry.get_default_config(name)
    if "impl" in config:
        options = {"impl": "jax"} | options
    environment = registry.load(name, config, options)
    limit = config.episode_length if time_limit is None else time_limit
    if not randomize:
        return Brax(environment, limit)
    function = registry.get_domain_randomizer(name)
    if function is None:
        raise ValueError(
            f"randomize is true, but Playground has no randomization of {name}: leave it out"
        )
    return RandomizedBrax(environment, limit, function, "_mjx_model")
