"""The command: `sebulba train --agent impala --env Pong-v5`."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from rich.progress import Progress

import sebulba
from podracer import command, kernels, metrics, parallel
from podracer.agents import from_flags
from podracer.errors import UserError
from podracer.parallel import hosts
from podracer.plan import flags
from podracer.runs import evaluation, in_turn, run, run_folder
from podracer.trained import playing, video
from podracer.trained.filming import Film
from podracer.trained.loading import Trained
from podracer.training import configuring, memory
from sebulba import host_environments, planning
from sebulba.command import environments
from sebulba.command.flags import Evaluate, Plan, Train
from sebulba.command.serving import serve
from sebulba.cores import Cores, split
from sebulba.host_environments.environment import capabilities_of
from sebulba.report import advice
from sebulba.starting import most_ahead

ENVIRONMENTS = configuring.Environments(
    environments.DEFAULT,
    environments.choose,
    host_environments.default_options,
    host_environments.brings_code,
)


def train(argv: Sequence[str]) -> None:
    """Train an agent in environments on the host; leaves a run folder."""
    configured = configuring.configure(argv, Train, "sebulba", ENVIRONMENTS)
    config = configured.config
    if config.seeds > 1 and hosts.number_of() > 1:
        raise UserError("--seeds is for one process: start one for each seed")
    setting = prepare(configured)
    if config.seeds == 1:
        train_one(setting, config)
        return
    runs = in_turn.choose(config)
    in_turn.train(partial(train_one, setting), runs, config, **configured.names)


class Setting(NamedTuple):
    """What runs of one command have in common."""

    configured: configuring.Configured
    cores: Cores
    specs: tuple  # of observations and actions

    def maker(self, config: Train) -> Callable[..., Any]:
        """What makes the environments of a run, see `environments.maker`."""
        threads = config.threads_per_core * len(self.cores.actors)
        return environments.maker(self.configured.env, config, threads)


def prepare(configured: configuring.Configured) -> Setting:
    """Chooses the cores, and says what will train on them. Raises UserError."""
    config = configured.config
    parallel.use_cpu_cores(config.cores)
    wanted = config.actor_cores, config.learner_cores, config.cores
    cores = split(jax.local_devices(), *wanted)
    setting = Setting(configured, cores, ())
    make = setting.maker(config)
    with contextlib.closing(environments.example(make, configured.env)) as example:
        specs = example.observation_spec(), example.action_spec()
    agent = make_agent(configured, specs)
    replayed, most = memory.replayed(agent, specs[0], config), memory.available()
    held = memory.of_learner(agent, len(cores.learners), most)
    held += replayed.check(most, hosts.number_of())
    # Each thread has a trajectory in the making and one in the queue.
    threads = config.threads_per_core * len(cores.actors)
    steps = 2 * threads * (config.unroll_length + 1)
    memory.check(config.batch_size, steps, specs[0], besides=held)
    if not config.keep.quiet:
        print(f"{cores}; {threads} actor threads x {config.batch_size} environments")
    configured.say_torsos(specs[0])
    learners = len(cores.learners) * hosts.number_of()
    configured.say_replay(agent, specs[0], learners)
    return setting._replace(specs=specs)


def train_one(setting: Setting, config: Train) -> None:
    """One run from its start, or its checkpoint, to its end."""
    cores, specs = setting.cores, setting.specs
    configured = setting.configured._replace(config=config)
    agent, make = make_agent(configured, specs), setting.maker(config)
    start = partial(
        sebulba.train,
        agent,
        partial(make, updates=environments.updates_before(config.keep.resume)),
        unroll_length=config.unroll_length,
        total_steps=config.total_steps,
        cores=cores,
        threads_per_core=config.threads_per_core,
        updates_per_trajectory=config.updates_per_trajectory,
        max_lag=config.max_lag,
        late=config.late,
        seed=config.seed,
    )

    def play(state: sebulba.State, episodes: int) -> evaluation.Evaluation:
        params = evaluation.acting_params(agent, state.learner, cores.actors[0])
        size = min(episodes, config.batch_size)
        # After those that train.
        thread = config.threads_per_core * len(cores.actors) * hosts.number_of()
        options = environments.whole(config.env)
        with contextlib.closing(make(thread, size, options)) as environment:
            return sebulba.evaluate(agent, params, environment, episodes=episodes)

    def needed(config: Train) -> int:
        """Bytes of an update on a learner core: the environments are made already."""
        part = config.batch_size // len(cores.learners) // config.updates_per_trajectory
        other = make_agent(configured._replace(config=config), specs)
        return memory.of_update(other, specs[0], config.unroll_length, part)

    stored = run.encode_specs(*specs, frame_stack(config))
    with memory.naming(config, needed):
        folder = run.train(start, config, play, **configured.names, specs=stored)
    rows = [*metrics.read(folder / run_folder.METRICS)]
    if rows and not config.keep.quiet and hosts.this() == 0:
        ahead = most_ahead(config.max_lag, config.late, config.updates_per_trajectory)
        print(advice(rows, cores, config.threads_per_core, ahead))


def make_agent(configured: configuring.Configured, specs: tuple) -> Any:
    """The agent for environments with these observations and actions."""
    config = configured.config
    whole = from_flags.for_run(config.agent, config.total_steps)
    return configured.make_agent(whole, *specs, frame_stack(config))


def frame_stack(config: Train) -> int:
    """The number of frames that the agent sees at once."""
    return getattr(config.env, "frame_stack", 1)


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
        agent = make_agent(configured, specs)
        planning.describe(slice, agent, timestep, dynamic, configured.config)

    flags.alone("sebulba", report, argv)


def evaluate(argv: Sequence[str]) -> None:
    """Evaluate a run's agent: mean return over whole episodes."""

    def play(agent: Trained, config: Evaluate) -> evaluation.Evaluation:
        size = min(config.episodes, config.environments)
        batch = environments.of_run(agent.run, size, config.seed)
        with contextlib.closing(batch), Progress(transient=True) as shown:
            bar = shown.add_task("episodes", total=config.episodes)
            return sebulba.evaluate(
                agent.agent,
                agent.params,
                batch,
                episodes=config.episodes,
                progress=lambda: shown.advance(bar),
                **playing.play_options(config),
            )

    playing.evaluate(argv, "sebulba", Evaluate(), play, host_environments.brings_code)


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

    playing.render(argv, "sebulba", film, host_environments.brings_code)


COMMANDS = {f.__name__: f for f in (train, plan, evaluate, render, serve)}


def main() -> None:
    """`sebulba COMMAND ...`; bad input is one line and exit code 2."""
    with command.exits("sebulba"):
        kernels.install()
        command.dispatch(COMMANDS, sys.argv[1:], "sebulba")


if __name__ == "__main__":
    main()
