"""Agents from flags and run folders: chosen by name, and made for an environment."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from dm_env import specs

from podracer import command, imports, networks, transformations
from podracer.agent import Agent
from podracer.agents import AGENTS
from podracer.agents.presets import PRESETS, Preset
from podracer.errors import UserError, nearest
from podracer.networks import heads
from podracer.transformations import Interface, normalizer, ranges
from podracer.transformations.replay import Config as Replay
from podracer.transformations.replay import replay as replaying

AGENT = "the algorithm, or MODULE: one of your own with Config and make_agent"
NETWORK = (
    "MODULE:FUNCTION that makes the network: (observation_spec, action_spec) -> it"
)
PRESET = "hyperparameters to start from, published ones or ours"

# (observation_spec, action_spec, config) -> Network
MakeNetwork = Callable[[Any, specs.Array, Any], Any]


class Chosen(NamedTuple):
    """An agent and its network, as the flags name them."""

    name: str  # --agent
    module: ModuleType
    network: str | None  # --network; None: the built-in one
    make_network: MakeNetwork
    preset: Preset  # hyperparameters to start from
    flags: tuple[command.Choice, ...]  # for --help


def choose(
    agent: str | None,
    preset: str | None,
    network: str | None,
    *,
    unroll_length: int,
    batch_size: int,
) -> Chosen:
    """The agent `agent` with the hyperparameters of a preset, or its defaults.

    Args:
      agent: of `AGENTS`, or a module of the user's own; None: impala.
      preset: of the agent's; None: its defaults and the two below.
      network: `MODULE:FUNCTION`; None: the agent's own, or `networks.actor_critic`.
      unroll_length: without a preset.
      batch_size: without a preset.

    Raises:
      UserError: a name is unknown, or a user's own module does not provide what it must.
    """
    name = "impala" if agent is None else agent
    module = agent_module(name)
    default = Preset(_default_config(module, name), unroll_length, batch_size)
    presets = {"none": default} | PRESETS.get(name, {})
    choice = command.make_choice("preset", preset or "none", presets, PRESET)
    make_network, config = network_maker(network, module)
    found = presets[choice.name]
    if network is not None or found.network is None:
        found = found._replace(network=config)
    known = tuple(AGENTS) if name in AGENTS else ()
    flags = (
        command.Choice("agent", name, known, AGENT),
        choice,
        command.Choice("network", network, (), NETWORK),
    )
    return Chosen(name, module, network, make_network, found, flags)


def agent_module(name: str) -> ModuleType:
    """A module with `Config` and `make_agent`: of `AGENTS`, or a user's own.

    Raises UserError where there is none of that name, or it lacks one of the two.
    """
    if name in AGENTS:
        return AGENTS[name]
    if not imports.exists(name):
        raise UserError(
            f"--agent: unknown name {name!r}{nearest(name, AGENTS)}; or a module of your "
            "own, in the current folder or installed"
        )
    module = imports.module(name, "--agent")
    for part in ("Config", "make_agent"):
        if not callable(getattr(module, part, None)):
            raise UserError(
                f"--agent: module {name!r} has no {part}; it needs Config, a dataclass, "
                "and make_agent(config, network)"
            )
    return module


def _default_config(module: ModuleType, name: str) -> Any:
    try:
        config = module.Config()
    except Exception as error:
        raise UserError(
            f"--agent: {name}.Config() fails: {imports.describe(error)}"
        ) from error
    if not dataclasses.is_dataclass(config):
        raise UserError(f"--agent: {name}.Config is no dataclass")
    return config


def network_maker(path: str | None, agent: ModuleType) -> tuple[MakeNetwork, Any]:
    """What makes a network, and its configuration at the defaults.

    Args:
      path: `MODULE:FUNCTION`, whose function takes an environment's two specs and, if it
        has a third parameter whose default is a dataclass, that; None: the built-in one.
      agent: of `AGENTS` or a user's own; where it has such a function `make_network`, that
        is the built-in one, and networks are of any kind that the agent accepts.

    Raises:
      UserError: there is no such function.
    """
    own = getattr(agent, "make_network", None)
    kind = networks.Network if own is None else object
    if path is None:
        path, function = f"{agent.__name__}.make_network", own or networks.actor_critic
    else:
        function = imports.resolve(path, "--network")
    try:
        parameters = [*inspect.signature(function).parameters.values()]
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        raise UserError(
            f"--network: {path} must be a function of (observation_spec, action_spec)"
        ) from None
    config = parameters[2].default if len(parameters) > 2 else None
    has_flags = dataclasses.is_dataclass(config) and not isinstance(config, type)

    def make(observation_spec: Any, action_spec: specs.Array, config: Any):
        given = (observation_spec, action_spec, *([config] if has_flags else []))
        network = function(*given)
        if not isinstance(network, kind):
            raise UserError(
                f"--network: {path} gives {type(network).__name__}; it must be "
                "podracer.networks.Network"
            )
        return network

    return make, config if has_flags else imports.NoOptions()


def for_run(config: Any, total_steps: int) -> Any:
    """An agent's config with the length of the run, if it has a place for that."""
    if getattr(config, "total_steps", total_steps):
        return config
    return dataclasses.replace(config, total_steps=total_steps)


def pinned(config: Any, network: Any) -> Any:
    """An agent's config with the checksums of the files that it names, if it names any.

    A configuration that does has a method `pinned(network)`. Raises UserError where a file is
    missing, is no such file, or does not fit the network's configuration.
    """
    return getattr(config, "pinned", lambda network: config)(network)


def with_numbers(config: Any, numbers: Mapping[str, Any]) -> Any:
    """A config with other hyperparameters, which may be traced: the config's own checks,
    which need concrete values, are left out."""
    config = copy.copy(config)
    for name, number in numbers.items():
        object.__setattr__(config, name, number)
    return config


def make_agent(
    module: ModuleType,
    config: Any,
    network: Any,
    observation_spec: Any,
    action_spec: specs.Array,
    interface: Interface,
    frame_stack: int = 1,
    make_network: MakeNetwork = networks.actor_critic,
    replay: Replay = Replay(),  # noqa: B008 frozen
    unroll_length: int = 1,
) -> Agent:
    """The agent for an environment, with pre- and post-processing and replay.

    Args:
      module: of the agent.
      config: the agent's own.
      network: configuration of the network.
      observation_spec: of the environment.
      action_spec: of the environment.
      interface: what is normalized, scaled and clipped.
      frame_stack: number of frames that the agent sees at once.
      make_network: see `network_maker`.
      replay: trajectories to learn from again; needs an agent that corrects for stale data,
        whose module says `OFF_POLICY = True`.
      unroll_length: of these trajectories.
    """
    if replay.capacity:
        check_off_policy(module)
        config = with_learned_steps(config, replay)
    last_action = getattr(network, "last_action", False)
    frame_spec = observation_spec
    if interface.scale_observations or interface.normalize_observations:
        frame_spec = ranges.scaled_spec(observation_spec)
    spec = frame_spec
    if frame_stack > 1:
        spec = transformations.stacked_spec(spec, frame_stack)
    inner_actions = action_spec
    continuous = heads.is_continuous(action_spec)
    if continuous and interface.actions == "scale":
        inner_actions = ranges.scaled_spec(action_spec)
    if last_action:
        spec = (spec, inner_actions)
    agent = module.make_agent(config, make_network(spec, inner_actions, network))
    if not isinstance(agent, Agent):
        raise UserError(
            f"--agent: {module.__name__}.make_agent gives {type(agent).__name__}; it must "
            "be podracer.agent.Agent"
        )
    # From the agent outwards: the last of these sees what the environment gives.
    if last_action:
        agent = transformations.observe_last_action(agent, inner_actions)
    if frame_stack > 1:
        agent = transformations.stack_frames(agent, frame_stack, frame_spec)
    if interface.normalize_rewards:
        if not hasattr(config, "discount_factor"):
            raise UserError(
                "normalize_rewards needs the agent's discount_factor, which "
                f"{module.__name__}.Config does not have"
            )
        agent = normalizer.normalize_rewards(agent, config.discount_factor)
    if interface.normalize_observations:
        seen = frame_spec if interface.scale_observations else observation_spec
        agent = normalizer.normalize_observations(agent, seen)
    if interface.scale_observations:
        agent = ranges.scale_observations(agent, observation_spec)
    if continuous:
        bounded = {"scale": ranges.scale_actions, "clip": ranges.clip_actions}
        agent = bounded[interface.actions](agent, action_spec)
    return replaying(agent, replay, observation_spec, unroll_length)


def check_off_policy(module: ModuleType) -> None:
    """Raises UserError for an agent that learns from its own newest trajectories only."""
    if not getattr(module, "OFF_POLICY", False):
        name = module.__name__
        known = [x for x, agent in AGENTS.items() if hasattr(agent, "OFF_POLICY")]
        raise UserError(
            f"replay.capacity is above 0, but {name} does not say OFF_POLICY = True: it may "
            f"not correct for stale data; choose 0, or another agent ({', '.join(known)})"
        )


def with_learned_steps(config: Any, replay: Replay) -> Any:
    """An agent's config whose total_steps counts what is learned from, replayed or not."""
    if not getattr(config, "total_steps", None):
        return config
    total = round(config.total_steps * replay.learned_per_insert)
    return with_numbers(config, {"total_steps": total})
