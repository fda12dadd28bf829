"""What the subcommands of `anakin` do."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

import anakin
from anakin import adaptation, planning, population, schedules
from anakin.command import agents, environments, meta_train, tune
from anakin.command.environments import ENVIRONMENTS
from anakin.command.flags import Plan, Train
from anakin.command.memory import of_run
from podracer import parallel
from podracer.command import spaces
from podracer.errors import UserError
from podracer.parallel import cpu, hosts
from podracer.plan import flags
from podracer.runs import evaluation, lineage, members, run
from podracer.trained import evaluating, playing, video
from podracer.trained.filming import Film
from podracer.trained.loading import Trained
from podracer.trained.settings import Setting, check_fits
from podracer.training import configuring, memory

MOST_TRACED = 2**31 - 1  # environment steps of an update: JAX counts with 32 bits


def train(argv: Sequence[str]) -> None:
    """Train an agent in a JAX environment; leaves a run folder."""
    configured = with_schedules(
        configuring.configure(argv, Train, "anakin", ENVIRONMENTS)
    )
    config = configured.config
    runs = members.choose(config) if config.together else ()
    share = (len(runs) or config.batch_size) // hosts.number_of()
    cpus = cpu.cpu_cores(share) if config.cores is None else config.cores
    parallel.use_cpu_cores(cpus, apart=config.together)
    environment = environments.make(configured.env, config.env)
    make_agent = agents.maker(configured, environment)
    specs = environment.observation_spec(), environment.action_spec()
    configured.say_torsos(specs[0])
    made = make_agent({})
    agent, cores = schedules.agent_at(made, 0), parallel.make_mesh(config.cores).size
    configured.say_replay(agent, specs[0], cores, len(runs) or 1)
    about = {**configured.names, "specs": run.encode_specs(*specs)}
    if config.batch_size * config.unroll_length > MOST_TRACED:
        memory.check(config.batch_size, config.unroll_length + 1, specs[0])

    def needed(config: Train) -> int:
        environment = environments.make(configured.env, config.env)
        other = configured._replace(config=config)
        return of_run(agents.maker(other, environment), environment, config)

    naming = memory.naming(config, needed)
    if runs:
        start = partial(
            population.train,
            make_agent,
            environment,
            seeds=[x.seed for x in runs],
            hyperparameters={
                name: [x.hyperparameters[name] for x in runs]
                for name in runs[0].hyperparameters
            },
            adapt=adaptation.of_flags(config),
            **config.of_training,
        )
        with naming:
            folder = members.train(start, population.member, runs, config, **about)
        if config.population and not config.keep.quiet and hosts.this() == 0:
            print(*lineage.described(lineage.read(folder)), sep="\n")
        return
    start = partial(
        anakin.train, made, environment, seed=config.seed, **config.of_training
    )

    def play(state: anakin.State, episodes: int) -> evaluation.Evaluation:
        params = evaluation.acting_params(agent, state.learner, jax.local_devices()[0])
        return anakin.evaluate(agent, params, environment, episodes=episodes)

    with naming:
        run.train(start, config, play, **about)


def with_schedules(configured: configuring.Configured) -> configuring.Configured:
    """The same, with the schedules of a population as text, which config.json keeps."""
    texts = []
    for text in configured.config.schedule:
        if "=" in text or not text:
            texts.append(text)
            continue
        life = lineage.of_folder(Path(text))
        texts += schedules.to_text(
            [x.steps for x in life], [x.hyperparameters for x in life]
        )
    found = schedules.parse(texts)
    for name, x in found.items():
        for value in {*x.values}:
            spaces.check_takes(configured.config.agent, name, value, "schedule")
    swept = {name for name, _ in members.swept(configured.config)}
    if both := found.keys() & swept:
        raise UserError(f"--schedule and --sweep both have {min(both)}: leave one out")
    config = dataclasses.replace(configured.config, schedule=tuple(texts))
    return configured._replace(config=config)


def plan(argv: Sequence[str]) -> None:
    """Compile for TPUs or GPUs what `train` would run, without one; prints a report."""

    def report(argv: Sequence[str]) -> None:
        configured = with_schedules(
            configuring.configure(
                argv, Plan, "anakin", ENVIRONMENTS, flags.choices(argv)
            )
        )
        slice = flags.make_slice(configured.others)
        environment = environments.make(configured.env, configured.config.env)
        make_agent = agents.maker(configured, environment)
        print(f"{configured}, {slice}")
        planning.describe(slice, make_agent, environment, configured.config)

    flags.alone("anakin", report, argv)


def evaluate(argv: Sequence[str]) -> None:
    """Evaluate a run's agent: returns of whole episodes, in one or several settings."""

    def play(agent: Trained, setting: Setting, config: Any) -> evaluation.Evaluation:
        environment = environments.make(setting.env, setting.options)
        check_fits(setting, environment, agent)
        return anakin.evaluate(
            agent.agent,
            agent.params,
            environment,
            episodes=config.episodes,
            **playing.play_options(config),
        )

    player = evaluating.Player("anakin", evaluating.Config(), play, ENVIRONMENTS)
    evaluating.evaluate(argv, player)


def render(argv: Sequence[str]) -> None:
    """Play episodes with a run's agent and write them as a video."""

    def film(agent: Trained, config: video.Config) -> Film:
        environment = environments.of_run(agent.run)
        return anakin.film(
            agent.agent,
            agent.params,
            environment,
            episodes=config.episodes,
            **playing.play_options(config),
        )

    playing.render(argv, "anakin", film, ENVIRONMENTS)


COMMANDS = {f.__name__: f for f in (train, plan, evaluate, render)}
COMMANDS["meta-train"] = meta_train.main
COMMANDS["tune"] = tune.main
