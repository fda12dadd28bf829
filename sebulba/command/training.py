"""Runs of `sebulba train` and `sebulba tune`: what they have in common, and each."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax

import sebulba
from podracer import command, metrics, parallel
from podracer.agents import from_flags
from podracer.parallel import hosts
from podracer.runs import evaluation, run, run_folder
from podracer.training import configuring, memory
from sebulba import host_environments
from sebulba.command import environments
from sebulba.command.flags import Train
from sebulba.cores import Cores, split
from sebulba.host_environments.processes import Processes
from sebulba.report import advice
from sebulba.starting import most_ahead

ENVIRONMENTS = command.Environments(
    environments.DEFAULT,
    environments.choose,
    host_environments.default_options,
    host_environments.brings_code,
)


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
        apart = ", each in a process of its own" * isinstance(example, Processes)
    agent = make_agent(configured, specs)
    replayed, most = memory.replayed(agent, specs[0], config), memory.available()
    held = memory.of_learner(agent, len(cores.learners), most)
    held += replayed.check(most, hosts.number_of())
    # Each thread has a trajectory in the making and one in the queue.
    threads = config.threads_per_core * len(cores.actors)
    steps = 2 * threads * (config.unroll_length + 1)
    memory.check(config.batch_size, steps, specs[0], besides=held)
    if not config.keep.quiet:
        size = f"{threads} actor threads x {config.batch_size} environments"
        print(f"{cores}; {size}{apart}", flush=True)
    configured.say_torsos(specs[0])
    learners = len(cores.learners) * hosts.number_of()
    configured.say_replay(agent, specs[0], learners)
    return setting._replace(specs=specs)


def train_one(setting: Setting, config: Train) -> None:
    """One run from its start, or its checkpoint, to its end."""
    with opened(setting, config) as (folder, updates):
        for _ in updates:
            pass
    rows = [*metrics.read(folder / run_folder.METRICS)]
    if rows and not config.keep.quiet and hosts.this() == 0:
        ahead = most_ahead(config.max_lag, config.late, config.updates_per_trajectory)
        print(advice(rows, setting.cores, config.threads_per_core, ahead))


@contextlib.contextmanager
def opened(setting: Setting, config: Train) -> Iterator[Any]:
    """A run's folder and its training loop, see `run.open_run`."""
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
    about = {**configured.names, "specs": stored}
    with (
        memory.naming(config, needed),
        run.open_run(start, config, play, **about) as folder_and_updates,
    ):
        yield folder_and_updates


def make_agent(configured: configuring.Configured, specs: tuple) -> Any:
    """The agent for environments with these observations and actions."""
    config = configured.config
    whole = from_flags.for_run(config.agent, config.total_steps)
    return configured.make_agent(whole, *specs, frame_stack(config))


def frame_stack(config: Train) -> int:
    """The number of frames that the agent sees at once."""
    return getattr(config.env, "frame_stack", 1)
