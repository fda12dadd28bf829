"""What both commands do before their training loop: choose an agent, and make it."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from dm_env import specs

from podracer import (
    command,
    heads,
    networks,
    normalizer,
    ranges,
    transformations,
)
from podracer.agent import Agent, Interface, Preset
from podracer.agents import AGENTS
from podracer.agents.presets import PRESETS


class Chosen(NamedTuple):
    """An agent that the flags name, and the numbers to start from."""

    name: str
    module: ModuleType
    numbers: Preset
    flags: tuple[command.Choice, ...]  # for --help


def choose_agent(argv: Sequence[str], unroll_length: int, batch_size: int) -> Chosen:
    """The agent of `--agent`, with the numbers of `--preset` if there is one.

    Else the agent's defaults, and these two. Raises UserError for an unknown name.
    """
    agent = command.choose(argv, "agent", AGENTS, "impala", "the algorithm")
    module = AGENTS[agent.name]
    default = Preset(module.Config(), unroll_length, batch_size)
    presets = {"none": default} | PRESETS[agent.name]
    preset = command.choose(argv, "preset", presets, "none", "published numbers to use")
    numbers = presets[preset.name]
    numbers = numbers._replace(network=numbers.network or networks.Config())
    return Chosen(agent.name, module, numbers, (agent, preset))


def for_run(config: Any, total_steps: int) -> Any:
    """An agent's config that knows how long the run is, if it does not yet."""
    return dataclasses.replace(config, total_steps=config.total_steps or total_steps)


def with_numbers(config: Any, numbers: Mapping[str, Any]) -> Any:
    """A config with other numbers, which may be traced: a config's checks would ask
    them for their values."""
    config = copy.copy(config)
    for name, number in numbers.items():
        object.__setattr__(config, name, number)
    return config


def make_agent(
    module: ModuleType,
    config: Any,
    network: networks.Config,
    observation_spec: Any,
    action_spec: specs.Array,
    interface: Interface,
    frame_stack: int = 1,
) -> Agent:
    """The agent for an environment, with what lies between the two.

    Args:
      module: of the agent.
      config: the agent's own.
      network: what the network shall be.
      observation_spec: of the environment.
      action_spec: of the environment.
      interface: what is normalised, scaled and clipped.
      frame_stack: how many of its frames the agent sees at once.
    """
    frame_spec = observation_spec
    if interface.scale_observations or interface.normalize_observations:
        frame_spec = ranges.scaled_spec(observation_spec)
    spec = frame_spec
    if frame_stack > 1:
        spec = transformations.stacked_spec(spec, frame_stack)
    inner_actions = action_spec
    numbers = heads.kind_of(action_spec)[0] == "numbers"
    if numbers and interface.actions == "scale":
        inner_actions = ranges.scaled_spec(action_spec)
    if network.last_action:
        spec = (spec, inner_actions)
    agent = module.make_agent(
        config, networks.actor_critic(spec, inner_actions, network)
    )
    # From the agent outwards: the last of these sees what the environment gives.
    if network.last_action:
        agent = transformations.observe_last_action(agent, inner_actions)
    if frame_stack > 1:
        agent = transformations.stack_frames(agent, frame_stack, frame_spec)
    if interface.normalize_rewards:
        agent = normalizer.normalize_rewards(agent, config.discount_factor)
    if interface.normalize_observations:
        seen = frame_spec if interface.scale_observations else observation_spec
        agent = normalizer.normalize_observations(agent, seen)
    if interface.scale_observations:
        agent = ranges.scale_observations(agent, observation_spec)
    if numbers:
        bounded = {"scale": ranges.scale_actions, "clip": ranges.clip_actions}
        agent = bounded[interface.actions](agent, action_spec)
    return agent
