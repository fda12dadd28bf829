"""Who acts and who learns: disjoint sets of cores (arXiv:2104.06272, Fig 3)."""

from typing import NamedTuple

import jax

from podracer.errors import UserError, check_at_least_one, check_range

LEARNERS_PER_ACTOR = 3  # the paper's finding for model-free agents


class Cores(NamedTuple):
    """The cores of this host by their task; a single core has both."""

    actors: list[jax.Device]
    learners: list[jax.Device]

    def __str__(self) -> str:
        kind = self.actors[0].platform
        if self.actors == self.learners:
            return f"one {kind} core, which acts and learns"
        return f"{kind} cores: {len(self.actors)} to act, {len(self.learners)} to learn"


def split(
    devices: list[jax.Device],
    actors: int | None = None,
    learners: int | None = None,
    cores: int | None = None,
) -> Cores:
    """The first cores act and the next ones learn; by default, three learn for each actor.

    Args:
      devices: the cores of a host.
      actors: number of actor cores; default: a quarter, or all others if `learners` is given.
      learners: number of learner cores; default: all others.
      cores: number of cores to use, the first ones; default: all.

    Raises:
      UserError: there are too few cores.
    """
    check_at_least_one(actor_cores=actors, learner_cores=learners)
    if cores is not None:
        check_range("cores", cores, 1, len(devices))
        devices = devices[:cores]
    count = len(devices)
    if count == 1 and (actors or 1) == (learners or 1) == 1:
        return Cores(devices, devices)
    if actors is None:
        wanted = count // (1 + LEARNERS_PER_ACTOR) if learners is None else count
        actors = max(1, min(wanted, count - (learners or 1)))
    if learners is None:
        learners = max(1, count - actors)
    if actors + learners > count:
        raise UserError(
            f"actor_cores is {actors} and learner_cores {learners}, but this host has "
            f"{count}{' to use' if cores else ''}: choose at most {count} in all"
        )
    return Cores(devices[:actors], devices[actors : actors + learners])
