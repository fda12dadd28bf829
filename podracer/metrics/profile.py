"""`--profile`: a trace of a few updates, by jax.profiler."""

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax

SKIP = 2  # times that a training loop asks whether to stop, before the trace begins
STEPS = 3  # times while it is written: calls of the program, or trajectories


class Profile:
    """A trace of part of a run, after compilation.

    Args:
      wanted: whether there is to be one.
      say: prints a line.
    """

    def __init__(self, wanted: bool, say: Callable[[str], None]):
        self._wanted, self._say = wanted, say
        self._folder: Path | None = None
        self._steps, self._running, self._done = 0, False, False

    def around(self, updates: Generator[Any], folder: Path) -> Generator[Any]:
        """The same updates of a training loop; their trace goes into this folder."""
        self._folder = folder
        with contextlib.closing(updates):
            try:
                yield from updates
            finally:
                self._stop()
                if self._wanted and not self._done:
                    self._say("no profile: the run ended too soon after compilation")

    def step(self) -> None:
        """Starts or stops the trace when it is time; a training loop calls this often."""
        if not self._wanted or self._done or self._folder is None:
            return
        self._steps += 1
        if self._steps == SKIP:
            jax.profiler.start_trace(str(self._folder), profiler_options=_options())
            self._running = True
        elif self._steps == SKIP + STEPS:
            self._stop()

    def _stop(self) -> None:
        if not self._running:
            return
        self._running, self._done = False, True
        jax.profiler.stop_trace()
        traces = sorted(self._folder.glob("**/*.trace.json.gz"))
        where = traces[-1] if traces else self._folder
        self._say(
            f"profile: open {where} at https://ui.perfetto.dev, or pip install xprof and "
            f"xprof --logdir {self._folder}"
        )


def _options() -> jax.profiler.ProfileOptions:
    """No calls of Python functions, which would be most of the trace."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    return options
