"""What both commands do around their training loop: choose an agent, keep a run."""

import dataclasses
from collections.abc import Generator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from dm_env import specs

from podracer import command, networks, recording, run_folder, transformations
from podracer.agent import Agent, Preset
from podracer.agents import AGENTS


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
    presets = {"none": default} | module.PRESETS
    preset = command.choose(argv, "preset", presets, "none", "published numbers to use")
    return Chosen(agent.name, module, presets[preset.name], (agent, preset))


def for_run(config: Any, total_steps: int) -> Any:
    """An agent's config that knows how long the run is, if it does not yet."""
    return dataclasses.replace(config, total_steps=config.total_steps or total_steps)


def make_agent(
    module: ModuleType,
    config: Any,
    network: networks.Config,
    observation_spec: Any,
    action_spec: specs.Array,
    frame_stack: int = 1,
) -> Agent:
    """The agent for an environment, with what its network wants to see besides.

    Args:
      module: of the agent.
      config: the agent's own.
      network: what the network shall be.
      observation_spec: of the environment.
      action_spec: of the environment.
      frame_stack: how many of its frames the agent sees at once.
    """
    spec = observation_spec
    if frame_stack > 1:
        spec = transformations.stacked_spec(spec, frame_stack)
    if network.last_action:
        spec = (spec, action_spec)
    agent = module.make_agent(config, networks.actor_critic(spec, action_spec, network))
    if network.last_action:
        agent = transformations.observe_last_action(agent, action_spec)
    if frame_stack > 1:
        agent = transformations.stack_frames(agent, frame_stack, observation_spec)
    return agent


def keep(
    updates: Generator[tuple[Any, dict[str, float]]],
    config: Any,
    agent: str,
    env: str,
) -> Path:
    """Runs a training loop and leaves its folder, which is returned.

    `config` is the command's: it has total_steps, run, overwrite and quiet.
    """
    folder = run_folder.create(
        config.run,
        {"agent": agent, "env": env, "train": config},
        config.overwrite,
        name=f"{agent}-{env}".replace(":", "-"),
    )
    title = f"{agent} on {env}"
    recording.record(updates, folder, config.total_steps, title, config.quiet)
    return folder
