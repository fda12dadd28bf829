"""`anakin tune`: an agent's hyperparameters searched by Optuna, perhaps many runs at a time."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

import anakin
from anakin import population
from anakin.command import agents, environments
from anakin.command.flags import Train
from anakin.command.memory import of_run
from podracer import parallel
from podracer.agent import Agent
from podracer.errors import UserError
from podracer.parallel import cpu
from podracer.runs import members, run, run_folder
from podracer.training import configuring, memory
from podracer.tune import commands
from podracer.tune.space import is_of_floats
from podracer.tune.study import Trial, alone


@dataclasses.dataclass(frozen=True)
class Tune(Train):
    """Searches for an agent's hyperparameters with Optuna: trains run after run, and ends those
    that are worse than most. Flags are those of `anakin train`, and --tune.

    Leaves a folder with a run folder for each trial, and Optuna's study.log.
    """

    MAIN = ()

    tune: commands.TogetherSearch = dataclasses.field(
        default_factory=commands.TogetherSearch
    )


class Setting(NamedTuple):
    """What the trials have in common."""

    configured: configuring.Configured
    environment: Any
    about: dict[str, Any]  # what a run folder says of its agent and environment

    def maker(self, config: Train) -> Callable[[Mapping[str, Any]], Agent]:
        """(the hyperparameters in which runs of one program differ) -> a run's agent."""
        return agents.maker(self.configured._replace(config=config), self.environment)

    def needed(self, config: Train) -> int:
        """Bytes of a run's programs."""
        return of_run(self.maker(config), self.environment, config)


def main(argv: Sequence[str]) -> None:
    """Search for an agent's hyperparameters; leaves a folder of runs."""
    configured = configuring.configure(argv, Tune, "anakin", environments.ENVIRONMENTS)
    config = configured.config
    space, together = commands.prepare(config), config.tune.together
    if together > 1 and not is_of_floats(space):
        print("runs of one program can differ in floats only: trials one after another")
        together = 1
    cores = cpu.cpu_cores(together if together > 1 else config.batch_size)
    parallel.use_cpu_cores(config.cores or cores, apart=together > 1)
    environment = environments.make(configured.env, config.env)
    specs = environment.observation_spec(), environment.action_spec()
    configured.say_torsos(specs[0])
    about = {**configured.names, "specs": run.encode_specs(*specs)}
    setting = Setting(configured, environment, about)
    one = alone(partial(commands.rows, partial(opened, setting)))
    train = partial(train_together, setting) if together > 1 else one
    commands.search(train, config, Train, "anakin", about, together)


@contextlib.contextmanager
def opened(setting: Setting, config: Train) -> Iterator[Any]:
    """A run's folder and its training loop, see `run.open_run`."""
    start = partial(
        anakin.train,
        setting.maker(config)({}),
        setting.environment,
        seed=config.seed,
        **config.of_training,
    )
    with (
        memory.naming(config, setting.needed),
        run.open_run(start, config, None, **setting.about) as folder_and_updates,
    ):
        yield folder_and_updates


def train_together(
    setting: Setting,
    trials: Sequence[Trial],
    report: Callable[[Sequence[Any]], bool],
) -> None:
    """Trains trials in one program, from their beginning, and reports each row."""
    config, base = setting.configured.config, trials[0].folder.parent
    # What an interrupted program has left of these trials begins again.
    keep = dataclasses.replace(config.keep, run=base, resume=None, overwrite=True)
    config = dataclasses.replace(config, keep=keep)
    runs = [
        members.Member(
            x.name,
            config.seed,
            x.values,
            dataclasses.replace(x.config, keep=keep, cores=1),
        )
        for x in trials
    ]

    def start(stopped: Callable[[], bool], **options: Any) -> Iterator[Any]:
        ended = False
        updates = population.train(
            setting.maker(config),
            setting.environment,
            seeds=[x.seed for x in runs],
            hyperparameters={
                name: [x.hyperparameters[name] for x in runs]
                for name in trials[0].values
            },
            stopped=lambda: ended or stopped(),
            **config.of_training,
            **options,
        )
        with contextlib.closing(updates):
            for state, rows in updates:
                yield state, rows
                ended = bool(rows and report(rows)) or ended

    try:
        with memory.naming(config, setting.needed):
            members.train(start, population.member, runs, config, **setting.about)
    except FloatingPointError:
        pass  # each is reported
    except UserError as error:
        if isinstance(error.__cause__, jax.errors.ConcretizationTypeError):
            raise UserError(f"{error}: leave --tune.together out") from error
        raise
    finally:  # the mean of these trials says nothing
        (base / run_folder.CURVE).unlink(missing_ok=True)
