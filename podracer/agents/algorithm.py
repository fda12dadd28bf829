"""What an algorithm is: all that its module may offer, in one record that is checked once.

The module itself is what an author writes: `Config`, `make_agent`, and what `Algorithm`
lists beside them. A user's own module has the same rights as ours.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from podracer import imports
from podracer.agent import Agent
from podracer.errors import UserError
from podracer.metrics.vocabulary import OF_RUNS
from podracer.transformations import Interface
from podracer.transformations.replay import Config as Replay


class Preset(NamedTuple):
    """Published hyperparameters: an agent's, and those that belong to them."""

    config: Any  # the agent's own Config
    unroll_length: int  # T, environment steps
    batch_size: int  # B, environments, over all cores
    network: Any = None  # networks.Config; None: its defaults
    interface: Interface = Interface()
    replay: Replay = Replay()
    threads_per_core: int = 2  # Sebulba's, each with a batch of its own
    max_lag: int | None = None  # Sebulba's: updates between acting and learning


class Algorithm(NamedTuple):
    """What the module of an algorithm offers; the name that each has there, if another."""

    name: str  # of the module
    config: Any  # Config(), a frozen dataclass: the hyperparameters at their defaults
    make_agent: Callable[..., Agent]  # (config, network) -> Agent
    # (observation_spec, action_spec, config) -> network; None: networks.actor_critic
    make_network: Callable[..., Any] | None
    presets: Mapping[str, Preset]  # PRESETS; "none", if there, are the defaults
    renamed: Mapping[str, str]  # RENAMED: the preset that each former name stands for
    off_policy: bool  # OFF_POLICY: it corrects for stale data, so replay may be used
    # METRICS: (unit, meaning) of those that are not in `podracer.metrics.VOCABULARY`
    metrics: Mapping[str, tuple[str, str]]
    # (config, network's config) -> config with the checksums of the files that it names
    pinned: Callable[[Any, Any], Any]
    # (fields of a config.json) -> these fields as they are called and meant today
    upgraded: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def of(module: ModuleType) -> Algorithm:
    """What a module offers. Raises UserError for what is missing or of another kind."""
    name = module.__name__
    for part in ("Config", "make_agent"):
        if not callable(getattr(module, part, None)):
            raise UserError(
                f"--agent: module {name!r} has no {part}; it needs Config, a dataclass, "
                "and make_agent(config, network)"
            )
    try:
        config = module.Config()
    except Exception as error:
        raise UserError(
            f"--agent: {name}.Config() fails: {imports.describe(error)}"
        ) from error
    algorithm = Algorithm(
        name,
        config,
        module.make_agent,
        getattr(module, "make_network", None),
        getattr(module, "PRESETS", {}),
        getattr(module, "RENAMED", {}),
        getattr(module, "OFF_POLICY", False),
        getattr(module, "METRICS", {}),
        getattr(module, "pinned", lambda config, network: config),
        getattr(module, "upgraded", lambda values: values),
    )
    for problem in _problems(algorithm):
        raise UserError(f"--agent: {name}.{problem}")
    return algorithm


def _problems(algorithm: Algorithm) -> Iterator[str]:
    """What is wrong with the parts, one line each."""
    if not dataclasses.is_dataclass(algorithm.config):
        yield "Config is no dataclass"
    for part in ("make_network", "pinned", "upgraded"):
        function = getattr(algorithm, part)
        if function is not None and not callable(function):
            yield f"{part} is {function!r}; it must be a function"
    if not isinstance(algorithm.off_policy, bool):
        yield f"OFF_POLICY is {algorithm.off_policy!r}; it must be True or False"
    for part in ("PRESETS", "RENAMED", "METRICS"):
        table = getattr(algorithm, part.lower())
        if not isinstance(table, Mapping):
            yield f"{part} is {table!r}; it must be a dictionary"
    for key, preset in algorithm.presets.items():
        where, kind = f"PRESETS[{key!r}]", type(algorithm.config)
        if not isinstance(preset, Preset):
            yield f"{where} is {preset!r}; it must be a podracer.agents.algorithm.Preset"
        elif not isinstance(preset.config, kind):
            yield f"{where}.config is {preset.config!r}; it must be {algorithm.name}.Config"
    for former, key in algorithm.renamed.items():
        if key not in algorithm.presets:
            yield f"RENAMED[{former!r}] is {key!r}, which is no preset"
    for metric, words in algorithm.metrics.items():
        if metric in OF_RUNS:
            yield f"METRICS has {metric!r}, which a run measures itself: choose another"
        if not isinstance(words, tuple) or [*map(type, words)] != [str, str]:
            yield f"METRICS[{metric!r}] is {words!r}; it must be (unit, meaning)"


def has(config: Any, field: str) -> bool:
    """Whether a configuration has a field that commands know, if it is there.

    These are `total_steps`, which they fill in, and `discount_factor`, which normalized
    rewards need, of an agent's; `last_action` of a network's.
    """
    return hasattr(config, field)
