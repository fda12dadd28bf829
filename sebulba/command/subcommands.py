"""What the subcommands of `sebulba` do."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.progress import Progress

import sebulba
from podracer.errors import UserError
from podracer.parallel import hosts
from podracer.plan import flags
from podracer.runs import evaluation, in_turn
from podracer.trained import evaluating, playing, video
from podracer.trained.filming import Film
from podracer.trained.loading import Trained
from podracer.trained.settings import Setting, check_fits
from podracer.training import configuring
from sebulba import planning
from sebulba.command import environments, training, tune
from sebulba.command.flags import Evaluate, Plan, Train
from sebulba.command.serving import serve
from sebulba.command.training import ENVIRONMENTS
from sebulba.host_environments.environment import capabilities_of


def train(argv: Sequence[str]) -> None:
    """Train an agent in environments on the host; leaves a run folder."""
    configured = configuring.configure(argv, Train, "sebulba", ENVIRONMENTS)
    config = configured.config
    if config.seeds > 1 and hosts.number_of() > 1:
        raise UserError("--seeds is for one process: start one for each seed")
    setting = training.prepare(configured)
    if config.seeds == 1:
        training.train_one(setting, config)
        return
    runs = in_turn.choose(config)
    in_turn.train(
        partial(training.train_one, setting), runs, config, **configured.names
    )


def plan(argv: Sequence[str]) -> None:
    """Compile for TPUs or GPUs what `train` would run, without one; prints a report."""

    def report(argv: Sequence[str]) -> None:
        configured = configuring.configure(
            argv, Plan, "sebulba", ENVIRONMENTS, flags.choices(argv)
        )
        slice = flags.make_slice(configured.others)
        make = environments.maker(configured.env, configured.config, 1)
        with contextlib.closing(environments.example(make, configured.env)) as example:
            specs = example.observation_spec(), example.action_spec()
            timestep, dynamic = example.reset(), capabilities_of(example).dynamic
        print(f"{configured}, {slice}")
        agent = training.make_agent(configured, specs)
        planning.describe(slice, agent, timestep, dynamic, configured.config)

    flags.alone("sebulba", report, argv)


def evaluate(argv: Sequence[str]) -> None:
    """Evaluate a run's agent: returns of whole episodes, in one or several settings."""

    def play(agent: Trained, setting: Setting, config: Any) -> evaluation.Evaluation:
        size = min(config.episodes, config.environments)
        where = setting.env, setting.options
        batch = environments.to_evaluate(*where, size, config.seed)
        with contextlib.closing(batch), Progress(transient=True) as shown:
            check_fits(setting, batch, agent)
            bar = shown.add_task("episodes", total=config.episodes)
            return sebulba.evaluate(
                agent.agent,
                agent.params,
                batch,
                episodes=config.episodes,
                progress=lambda: shown.advance(bar),
                **playing.play_options(config),
            )

    player = evaluating.Player(
        "sebulba", Evaluate(), play, ENVIRONMENTS, environments.whole
    )
    evaluating.evaluate(argv, player)


def render(argv: Sequence[str]) -> None:
    """Play episodes with a run's agent and write them as a video."""

    def film(agent: Trained, config: video.Config) -> Film:
        environment = environments.to_film(agent.run, config.seed)
        with contextlib.closing(environment):
            return sebulba.film(
                agent.agent,
                agent.params,
                environment,
                episodes=config.episodes,
                **playing.play_options(config),
            )

    playing.render(argv, "sebulba", film, ENVIRONMENTS)


COMMANDS = {f.__name__: f for f in (train, plan, evaluate, render, serve)}
COMMANDS["tune"] = tune.main
