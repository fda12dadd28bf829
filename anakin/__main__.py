"""The command: `anakin train --agent impala --env catch`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anakin
import envs_jax
from podracer import command, networks, parallel, recording, run_folder
from podracer.agents import AGENTS


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains an agent in a JAX environment: everything in one program, on every core.

    Leaves a run folder with config.json, metrics.jsonl and curve.png.
    """

    agent: Any
    env: Any
    network: networks.Config = dataclasses.field(default_factory=networks.Config)
    total_steps: int = 1_000_000
    """environment steps of the run"""
    batch_size: int = 64
    """environments, over all cores; a preset brings its own"""
    unroll_length: int = 16
    """environment steps between two updates; a preset brings its own"""
    updates_per_call: int | None = None
    """updates between two reports; by default a hundredth of the run"""
    seed: int = 0
    """of everything random: equal seeds give equal runs, bit for bit"""
    cores: int | None = None
    """cores to use, by default all; on a CPU any number can be made up"""
    run: Path | None = None
    """folder of the run, by default a new one under runs/"""
    overwrite: bool = False
    """take a folder that holds a run, and remove that run"""
    quiet: bool = False
    """print nothing but errors"""


def train(argv: Sequence[str]) -> None:
    """Parses the flags, makes the agent and its environment, and records the run."""
    agent = command.choose(argv, "agent", AGENTS, "impala", "the algorithm")
    module = AGENTS[agent.name]
    env = command.choose(
        argv, "env", envs_jax.ENVIRONMENTS, "catch", "where the agent acts"
    )
    preset = command.choose(
        argv, "preset", ("none", *module.PRESETS), "none", "published numbers to use"
    )
    default = Train(module.Config(), envs_jax.ENVIRONMENTS[env.name]())
    if preset.name != "none":
        numbers = module.PRESETS[preset.name]
        default = dataclasses.replace(
            default,
            agent=numbers.config,
            unroll_length=numbers.unroll_length,
            batch_size=numbers.batch_size,
        )
    config = command.parse(default, argv, "anakin train", (agent, env, preset))
    run(agent.name, env.name, config)


def run(agent_name: str, env_name: str, config: Train) -> None:
    """Trains as configured and leaves a run folder."""
    parallel.use_cpu_cores(config.cores)
    environment = envs_jax.make(env_name, **dataclasses.asdict(config.env))
    network = networks.actor_critic(
        environment.observation_spec(), environment.action_spec(), config.network
    )
    agent_config = dataclasses.replace(
        config.agent, total_steps=config.agent.total_steps or config.total_steps
    )
    updates = anakin.train(
        AGENTS[agent_name].make_agent(agent_config, network),
        environment,
        batch_size=config.batch_size,
        unroll_length=config.unroll_length,
        total_steps=config.total_steps,
        seed=config.seed,
        updates_per_call=config.updates_per_call,
        cores=config.cores,
    )
    folder = run_folder.create(
        config.run,
        {"agent": agent_name, "env": env_name, "train": config},
        config.overwrite,
        name=f"{agent_name}-{env_name}",
    )
    title = f"{agent_name} on {env_name}"
    recording.record(updates, folder, config.total_steps, title, config.quiet)


COMMANDS = {"train": train}


def main() -> None:
    """`anakin COMMAND ...`; bad input is one line and exit code 2."""
    with command.exits("anakin"):
        command.dispatch(COMMANDS, sys.argv[1:], "anakin")


if __name__ == "__main__":
    main()
