"""Sebulba's speed beside the speed of its parts, all measured in one run.

    python -m benchmarks.sebulba [--seconds 2] [--rounds 3] [--settings cartpole pong-shallow ...]

For each setting: environment steps/s of the simulator alone (one batch per actor thread,
random actions), of acting without learning, of learning from one trajectory again and
again, and of training. The limit is the speed of the slower of acting and learning;
`share` is training over that limit. On a CPU acting and learning also compete for
processors: `both` is training over the speed that they would have if they took turns, and
`processors` is training over the speed at which all processors would be busy, if a step
took as much of their time as in acting alone and learning alone together.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
import rich.console
import rich.progress
import rich.table
import tyro

import sebulba
from podracer import networks, parallel
from podracer.agents import algorithm, from_flags, impala
from podracer.metrics import human
from podracer.transformations import Interface
from sebulba import actor, host_environments, starting
from sebulba.cores import Cores, split
from sebulba.learner import Learner
from sebulba.transport import ParameterServer, TrajectoryQueue

Call = tuple[Callable[[], Any], int]  # what is measured, and the steps that it takes


class Task(NamedTuple):
    """An environment and its agent."""

    environment: str
    network: networks.Config
    algorithm: ModuleType = impala
    hyperparameters: Any = impala.Config()


SETTINGS = {
    "cartpole": Task("CartPole-v1", networks.Config()),
    "pong-shallow": Task("Pong-v5", networks.Config(torso="shallow")),
    "pong-deep": Task("Pong-v5", networks.Config(torso="resnet")),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    settings: tuple[str, ...] = tuple(SETTINGS)
    batch_sizes: tuple[int, ...] = (32, 64, 128)
    unroll_lengths: tuple[int, ...] = (20, 60)
    threads_per_core: tuple[int, ...] = (1, 2)
    cores: int = parallel.processors()
    """virtual CPU devices"""
    seconds: float = 2.0
    """of each measurement, after compilation"""
    rounds: int = 3
    """measurements of each part, in turn; the result is their median"""


class Setting:
    """An agent, environments and cores to measure."""

    def __init__(self, task: Task, batch: int, unroll: int, threads: int, cores: Cores):
        self.env = task.environment
        self.batch, self.unroll, self.threads_per_core = batch, unroll, threads
        self.cores, self.threads = cores, threads * len(cores.actors)
        self.steps = batch * unroll
        options = host_environments.default_options(self.env)
        self.options = options
        example = self.environment(0)
        self.num_actions = example.action_spec().num_values
        self.agent = from_flags.make_agent(
            from_flags.Parts(
                algorithm.of(task.algorithm),
                task.hyperparameters,
                task.network,
                example.observation_spec(),
                example.action_spec(),
                Interface(),
                getattr(options, "frame_stack", 1),
            )
        )
        example.close()

    def environment(self, thread: int) -> host_environments.HostEnvironment:
        env_threads = max(1, parallel.processors() // self.threads)
        seed = host_environments.first_seed(0, thread, self.batch)
        return host_environments.make(
            self.env, self.batch, seed, env_threads, self.options
        )

    def measure(self, seconds: float, rounds: int) -> dict[str, "Speed"]:
        """Medians of each part's speeds; they take turns, as a machine's speed varies."""
        parts = self.simulator, self.acting, self.learning, self.training
        with contextlib.ExitStack() as stack:
            calls = {part.__name__: stack.enter_context(part()) for part in parts}
            measured = [
                {
                    name: rate(call, seconds, self.threads)
                    for name, call in calls.items()
                }
                for _ in range(rounds)
            ]
        return {
            name: Speed(*np.median([speeds[name] for speeds in measured], axis=0))
            for name in calls
        }

    @contextlib.contextmanager
    def simulator(self) -> Iterator[Call]:
        """The host environments alone, each batch in its own thread."""
        environments = [self.environment(number) for number in range(self.threads)]
        for environment in environments:
            environment.reset()  # a first one takes seconds
        random = np.random.default_rng(0)
        shape = self.unroll, self.batch
        actions = random.integers(0, self.num_actions, shape, np.int32)

        def play(environment: host_environments.HostEnvironment) -> None:
            for action in actions:
                environment.step(action)

        with ThreadPoolExecutor(self.threads) as pool:
            yield (
                lambda: list(pool.map(play, environments)),
                self.steps * self.threads,
            )
        for environment in environments:
            environment.close()

    @contextlib.contextmanager
    def acting(self) -> Iterator[Call]:
        """Actors whose trajectories are discarded."""
        learner, server = self.learner(), ParameterServer(self.cores.actors)
        server.publish(learner.params, 0)
        queue = TrajectoryQueue(capacity=self.threads)
        actors = starting.make_actors(
            self.agent,
            [self.environment(number) for number in range(self.threads)],
            self.unroll,
            self.cores,
            [jax.random.key(number) for number in range(self.threads)],
            server,
            queue,
        )
        with actor.running(actors, queue):
            yield queue.get, self.steps

    @contextlib.contextmanager
    def learning(self) -> Iterator[Call]:
        """The learner on one trajectory that is already on its cores."""
        environment, learner = self.environment(0), self.learner()
        parts = len(self.cores.learners)
        programs = actor.make_programs(self.agent, self.unroll, parts)
        device = self.cores.actors[0]
        params = parallel.on_device(learner.params, device)
        timestep = environment.reset()
        key = jax.device_put(jax.random.key(0), device)
        before, unroll = programs.start(params, key, timestep)
        keys = programs.keys(before)
        for _ in range(self.unroll):
            unroll, action = programs.step(params, keys, unroll, timestep)
            timestep = environment.step(np.asarray(action))
        environment.close()
        _, trajectory, _ = programs.finish(before, unroll, timestep)

        def learn() -> None:
            learner.learn(trajectory)
            jax.block_until_ready(learner.params)

        yield learn, self.steps

    @contextlib.contextmanager
    def training(self) -> Iterator[Call]:
        """`sebulba.train` as its user sees it."""
        with contextlib.closing(self.train()) as rows:
            yield lambda: next(rows), self.steps

    def seconds(self, steps: int) -> float:
        """Of training for so many steps, a multiple of a trajectory's, once compiled."""
        with contextlib.closing(self.train()) as rows:
            for _ in range(2 * self.threads):
                next(rows)
            started = time.perf_counter()
            for _ in range(steps // self.steps):
                next(rows)
            return time.perf_counter() - started

    def train(self) -> Generator:
        """A report after each trajectory, without end."""
        return sebulba.train(
            self.agent,
            self.environment,
            unroll_length=self.unroll,
            total_steps=10**12,
            cores=self.cores,
            threads_per_core=self.threads_per_core,
            trajectories_per_report=1,
        )

    def learner(self) -> Learner:
        learner = Learner(self.agent, parallel.over_hosts(self.cores.learners), 1)
        learner.begin(jax.random.key(0))
        return learner


class Speed(NamedTuple):
    """Of a part."""

    steps: float  # environment steps/s
    processors: float  # seconds of a processor that an environment step takes


def rate(call: Call, seconds: float, threads: int) -> Speed:
    """The speed of a call, once what the actors have ready from before is taken."""
    function, steps = call
    for _ in range(2 * threads):
        function()
    calls, started, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        function()
        calls += 1
    spent, took = time.process_time() - used, time.perf_counter() - started
    return Speed(calls * steps / took, spent / (calls * steps))


def shares(got: dict[str, Speed]) -> list[float]:
    """Training over three limits: `share`, `both` and `processors`."""
    acting, learning = got["acting"], got["learning"]
    limits = (
        min(acting.steps, learning.steps),
        1 / (1 / acting.steps + 1 / learning.steps),
        parallel.processors() / (acting.processors + learning.processors),
    )
    return [got["training"].steps / limit for limit in limits]


def table(config: Config) -> rich.table.Table:
    """One row a setting."""
    names = ("simulator", "acting", "learning", "training")
    limits = ("share", "both", "processors")
    result = rich.table.Table("setting", "B", "T", "threads", *names, *limits)
    cores = split(jax.local_devices())
    settings = itertools.product(
        config.settings,
        config.batch_sizes,
        config.unroll_lengths,
        config.threads_per_core,
    )
    for name, batch, unroll, threads in rich.progress.track([*settings], "measuring"):
        got = Setting(SETTINGS[name], batch, unroll, threads, cores).measure(
            config.seconds, config.rounds
        )
        result.add_row(
            *map(str, (name, batch, unroll, threads)),
            *(human(got[x].steps) for x in names),
            *(f"{x:.2f}" for x in shares(got)),
        )
    return result


if __name__ == "__main__":
    config = tyro.cli(Config)
    parallel.use_cpu_cores(config.cores)
    console = rich.console.Console(width=120)
    console.print(f"jax {jax.__version__}; {split(jax.local_devices())}")
    console.print(table(config))
