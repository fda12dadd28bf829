"""What a run starts from: its arguments, its environments, perhaps an earlier state."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax

from podracer.agent import Agent
from podracer.errors import UserError, check_at_least_one, check_range
from podracer.parallel import hosts
from sebulba import actor, compiled_actor, dynamic_actor
from sebulba.actor import Actor, ActorCore
from sebulba.cores import Cores
from sebulba.host_environments import checking, protocol
from sebulba.host_environments.environment import capabilities_of
from sebulba.learner import LAYOUT, Learner, State
from sebulba.report import Report
from sebulba.transport import ParameterServer, TrajectoryQueue

LATE = ("wait", "drop")  # how `max_lag` is kept


def check(cores: Cores, max_lag: int | None, late: str, **numbers: int) -> None:
    """Raises UserError for an impossible argument of `train`, and a number below 1."""
    if not isinstance(cores, Cores):
        raise UserError(
            f"cores is {checking.shown(cores)}; it must be a Cores, as from "
            "sebulba.cores.split(jax.local_devices())"
        )
    check_at_least_one(**numbers)
    if max_lag is not None:
        check_range("max_lag", max_lag, 0)
    if late not in LATE:
        raise UserError(f"late is {late!r}; it must be {' or '.join(map(repr, LATE))}")


def most_ahead(
    max_lag: int | None, late: str, updates_per_trajectory: int
) -> int | None:
    """The most trajectories on their way to the learner while an actor begins another.

    0: acting and learning take turns. None: no limit, or late trajectories are dropped.
    """
    if max_lag is None or late == "drop":
        return None
    return max_lag // updates_per_trajectory


def make_environments(
    make_environment: Callable[[int], Any], threads: int, parts: int
) -> list[Any]:
    """A batch of environments for each actor thread.

    Raises UserError where one is no `HostEnvironment`, does not split into `parts`, or has
    another size than the others.
    """
    environments = []
    with closing(environments):
        for number in range(threads):
            environments.append(make_environment(number))
            origin = f"make_environment({number})"
            protocol.check_members(origin, environments[number])
            first, size = (environments[i].batch_size for i in (0, number))
            if number == 0:
                check_splits(size, parts)
            if first != size:
                raise UserError(
                    f"batch_size is {first} in make_environment(0) and {size} in "
                    f"{origin}: make batches of one size"
                )
    return environments


@contextlib.contextmanager
def closing(environments: list[Any]) -> Iterator[None]:
    """Closes the environments if the block fails."""
    try:
        yield
    except BaseException:
        close(environments)
        raise


def close(environments: list[Any]) -> None:
    """Closes all of them; what closing raises is dropped, as it hides an earlier error."""
    for environment in environments:
        with contextlib.suppress(Exception):
            environment.close()


def close_unstarted(actors: list[Actor]) -> None:
    """Closes the environments of actors that never ran; all others close their own."""
    close([actor.environment for actor in actors if actor.ident is None])


def check_splits(batch_size: int, parts: int) -> None:
    """Raises UserError where a batch does not split into `parts`."""
    if batch_size % parts:
        raise UserError(
            f"batch_size is {batch_size}, which does not split into {parts} equal parts, "
            "one for each learner core and update of a trajectory: choose a multiple of "
            f"{parts}, or other learner_cores"
        )


def make_actors(
    agent: Agent,
    environments: list[Any],
    unroll_length: int,
    cores: Cores,
    keys: Sequence[jax.Array],
    server: ParameterServer,
    queue: TrajectoryQueue,
) -> list[Actor]:
    """An actor for each batch of environments and each key; cores take turns."""
    first = environments[0]
    dynamic = capabilities_of(first).dynamic
    compiled = not dynamic and compiled_actor.can_act(first, cores.actors[0])
    programs = (dynamic_actor if dynamic else actor).make_programs(
        agent,
        unroll_length,
        len(cores.learners),
        first=hosts.this() * first.batch_size,
    )

    def make_actor(number: int, environment: Any, key: jax.Array) -> Actor:
        device = cores.actors[number % len(cores.actors)]
        newest = partial(server.latest, device)
        core = ActorCore(device, programs, unroll_length, newest, queue.stepped)
        reset, step = protocol.checked(environment)
        if dynamic:
            fill = dynamic_actor.make_fill(environment, core)
        elif compiled:
            fill = compiled_actor.make_fill(environment, core)
        else:
            fill = actor.make_fill(step, core)
        return Actor(f"actor {number}", environment, reset, fill, core, key, queue)

    return [*map(make_actor, range(len(environments)), environments, keys)]


def resume(
    restore: Callable[[State, State], State],
    learner: Learner,
    server: ParameterServer,
    report: Report,
    actor: Actor | None,
) -> None:
    """Resumes the learner and the report from a restored state, and `actor` if given.

    The actor resumes bit for bit from a state that holds its snapshot; from another one it
    begins new episodes with fresh random numbers.
    """
    state = learner.state
    if actor:
        server.publish(learner.params, learner.updates)
        actor.begin()
        learner.expect(actor.part())
        state = learner.whole_state(actor.snapshot(), report.sums())
    snapshot, sums = learner.restore(restore(state, LAYOUT))
    report.resume(learner.updates // learner.updates_per_trajectory, sums)
    if not actor:
        return
    if snapshot.steps > 0:
        actor.restore(snapshot)
    else:
        server.publish(learner.params, learner.updates)
        actor.begin()
