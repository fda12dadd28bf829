"""What an entrant is timed with, and how its script reads that and prints the result.

Scripts run in environments of their own: this module needs only the standard library.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

CAPACITY = 2**17  # transitions that are kept to learn from again


class Work(NamedTuple):
    """What every entrant does. With its options, it is its script's argument, as JSON."""

    kind: str  # of `contest.KINDS`
    environment: str  # its name in Anakin (small letters) or in EnvPool
    batch_size: int  # number of environments
    unroll_length: int  # steps between two updates
    epochs: int
    minibatches: int
    hidden_sizes: list[int]  # without a torso: of separate actor and critic, tanh
    torso: str  # "shallow", DQN's, or "resnet", IMPALA's
    memory: int  # units of their LSTMs; 0: none
    steps: int  # environment steps that are timed, whole updates

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.batch_size}x{self.unroll_length}"


class Replayed(NamedTuple):
    """The same for algorithms that learn from replay."""

    kind: str
    algorithm: str  # SAC or DQN
    environment: str
    batch_size: int  # number of environments
    unroll_length: int  # steps in each between two rounds of updates
    updates: int  # in such a round
    transitions: int  # that an update learns from
    hidden_sizes: list[int]  # of each network, ReLU
    steps: int  # environment steps that are timed, whole rounds

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.batch_size}x{self.unroll_length}"

    @property
    def updates_per_step(self) -> float:
        """Of an environment."""
        return self.updates / (self.batch_size * self.unroll_length)

    @property
    def updates_after_step(self) -> int:
        """Of all environments, for libraries that update after each.

        Raises ValueError if they cannot do as many updates as the others.
        """
        if self.updates % self.unroll_length:
            raise ValueError(f"{self.updates} updates for {self.unroll_length} steps")
        return self.updates // self.unroll_length


class Speed(NamedTuple):
    """What a script prints, as a line of JSON."""

    steps_per_second: float
    devices: int  # in use


def answer(
    measure: Callable[..., Speed], kind: type[Work] | type[Replayed] = Work
) -> None:
    """Prints `measure(work, **options)` of the script's argument."""
    options = json.loads(sys.argv[1])
    work = kind(*(options.pop(name) for name in kind._fields))
    print(json.dumps(measure(work, **options)._asdict()))


def seconds(function: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    """That a call takes."""
    started = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - started
