"""The command: `anakin train --agent impala --env catch`."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

import anakin
import envs_jax
from envs_jax import adapters
from podracer import (
    command,
    evaluation,
    experiment,
    networks,
    parallel,
    run,
    trained,
    video,
)
from podracer.agent import Interface
from podracer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains an agent in a JAX environment: everything in one program, on every core.

    Leaves a run folder with config.json, metrics.jsonl and curve.png.
    """

    agent: Any
    env: Any
    network: networks.Config = dataclasses.field(default_factory=networks.Config)
    interface: Interface = dataclasses.field(default_factory=Interface)
    total_steps: int = 1_000_000
    """environment steps of the run"""
    batch_size: int = 64
    """environments, over all cores; a preset has its own"""
    unroll_length: int = 16
    """environment steps between two updates; a preset has its own"""
    updates_per_report: int | None = None
    """updates between two reports; by default a hundredth of the run"""
    reset_pool: int | None = None
    """new episodes that a core's environments share in a step, where resets are
    expensive; by default each has its own"""
    seed: int = 0
    """of everything random: equal seeds give equal runs, bit for bit"""
    cores: int | None = None
    """cores to use, by default all (on a CPU as many as share the batch equally)"""
    keep: command.Flat[run.Keep] = dataclasses.field(default_factory=run.Keep)


def train(argv: Sequence[str]) -> None:
    """Trains as the flags say and leaves a run folder."""
    argv, before = run.resumed(argv)
    chosen = experiment.choose_agent(argv, unroll_length=16, batch_size=64)
    env = choose_environment(argv)
    new = Train(
        chosen.numbers.config,
        default_options(env.name),
        network=chosen.numbers.network,
        interface=chosen.numbers.interface,
        unroll_length=chosen.numbers.unroll_length,
        batch_size=chosen.numbers.batch_size,
    )
    default = run.default(new, before)
    config = command.parse(default, argv, "anakin train", (*chosen.flags, env))
    run.refuse_changes(default, config)
    cpus = parallel.largest_divisor(config.batch_size, os.cpu_count() or 1)
    parallel.use_cpu_cores(cpus if config.cores is None else config.cores)
    environment = make_environment(env.name, config.env)
    agent = experiment.make_agent(
        chosen.module,
        experiment.for_run(config.agent, config.total_steps),
        config.network,
        environment.observation_spec(),
        environment.action_spec(),
        config.interface,
    )
    start = partial(
        anakin.train,
        agent,
        environment,
        batch_size=config.batch_size,
        unroll_length=config.unroll_length,
        total_steps=config.total_steps,
        seed=config.seed,
        updates_per_report=config.updates_per_report,
        cores=config.cores,
        reset_pool=config.reset_pool,
    )
    specs = run.seen(environment.observation_spec(), environment.action_spec())

    def play(state: anakin.State, episodes: int) -> evaluation.Evaluation:
        params = parallel.on_device(agent.actor_params(state.learner), jax.devices()[0])
        return anakin.evaluate(agent, params, environment, episodes=episodes)

    run.keep(start, config, play, agent=chosen.name, env=env.name, specs=specs)


def evaluate(argv: Sequence[str]) -> None:
    """Plays a run's agent and says what it is worth."""
    config = command.parse(evaluation.Config(), argv, "anakin evaluate")
    agent = trained.restore(run.named(config.run, "anakin evaluate"), config.checkpoint)
    found = anakin.evaluate(
        agent.agent,
        agent.params,
        environment_of(agent.run),
        episodes=config.episodes,
        seed=config.seed,
        greedy=not config.sampled,
        max_steps=config.max_steps,
    )
    print(f"{agent.run.env}: {evaluation.keep(found, config, agent.updates)}")


def render(argv: Sequence[str]) -> None:
    """Plays an episode with a run's agent and writes it as a video."""
    config = command.parse(video.Config(), argv, "anakin render")
    agent = trained.restore(run.named(config.run, "anakin render"), config.checkpoint)
    try:
        pictures = anakin.film(
            agent.agent,
            agent.params,
            environment_of(agent.run),
            seed=config.seed,
            greedy=not config.sampled,
            max_steps=config.max_steps,
        )
    except ValueError as error:
        raise UserError(f"{agent.run.env}: {error}") from error
    print(video.write(pictures, config.out, config.fps))


def default_options(env: str) -> Any:
    """What can be set in an environment: its own dataclass, or a library's."""
    return envs_jax.ENVIRONMENTS.get(env, adapters.Options)()


def environment_of(stored: run.Stored) -> Any:
    """The environment of a run. Raises UserError where there is none like it here."""
    options = command.filled(default_options(stored.env), stored.config["env"], "env.")
    return make_environment(stored.env, options)


def choose_environment(argv: Sequence[str]) -> command.Choice:
    """One of ours, or LIBRARY:NAME, which no list here knows. Raises UserError."""
    help = "where the agent acts; or LIBRARY:NAME, as gymnax:CartPole-v1"
    env = command.choose(argv, "env", (), "catch", help)
    if ":" in env.name:
        return env
    return command.choose(argv, "env", envs_jax.ENVIRONMENTS, "catch", help)


def make_environment(name: str, options: Any) -> Any:
    """Raises UserError for an unknown name, or a library that is not there."""
    try:
        return envs_jax.make(name, **dataclasses.asdict(options))
    except ValueError as error:
        raise UserError(str(error)) from error


COMMANDS = {"train": train, "evaluate": evaluate, "render": render}


def main() -> None:
    """`anakin COMMAND ...`; bad input is one line and exit code 2."""
    with command.exits("anakin"):
        command.dispatch(COMMANDS, sys.argv[1:], "anakin")


if __name__ == "__main__":
    main()
