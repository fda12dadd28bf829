"""What an entrant is timed with, and how its script reads that and prints the result.

Scripts run in environments of their own: this module needs only the standard library.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Work(NamedTuple):
    """What every entrant does. With its options, it is its script's argument, as JSON."""

    kind: str  # of `contest.KINDS`
    environment: str  # its name in Anakin (small letters) or in EnvPool
    batch_size: int  # number of environments
    unroll_length: int  # steps between two updates
    epochs: int
    minibatches: int
    hidden_sizes: list[int]  # of separate actor and critic, tanh; []: `torso`
    torso: str  # "shallow", DQN's, or "resnet", IMPALA's, if there are no hidden sizes
    steps: int  # environment steps that are timed, whole updates

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.batch_size}x{self.unroll_length}"


class Speed(NamedTuple):
    """What a script prints, as a line of JSON."""

    steps_per_second: float
    devices: int  # in use


def answer(measure: Callable[..., Speed]) -> None:
    """Prints `measure(work, **options)` of the script's argument."""
    options = json.loads(sys.argv[1])
    work = Work(*(options.pop(name) for name in Work._fields))
    print(json.dumps(measure(work, **options)._asdict()))


def seconds(function: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    """That a call takes."""
    started = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - started
