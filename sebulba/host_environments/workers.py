"""A batch of worker processes, each with an environment, that share memory.

They are not daemonic, so that environments may start processes of their own. Still none
outlives the main process: it ends them, or they end themselves when its pipes close.
"""

import atexit
import contextlib
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import connection, reduction, resource_tracker
from typing import Any

import jax
import numpy as np

from podracer.errors import UserError
from podracer.imports import describe
from sebulba.host_environments import checking, guarded, spaces, worker
from sebulba.host_environments.guarded import DEAD

PRELOADED = ["cloudpickle", "numpy", "gymnasium"]  # once, for all workers
STARTING = threading.Lock()  # held while the main module is hidden from new processes
LIVE: "weakref.WeakSet[Workers]" = weakref.WeakSet()


class Workers:
    """B environments, which reset and step together.

    An exception in an environment is raised here, with a note that has its traceback.

    Args:
      name: of the environment, for messages.
      makers: B functions, each of which makes a gymnasium.Env, in the worker.
      bounds: whether observations are compared with their bounds.
      seconds: time limit.

    Raises:
      UserError: the workers do not start in time, or an environment cannot be made.
    """

    def __init__(
        self,
        name: str,
        makers: list[Callable[[], Any]],
        bounds: bool,
        seconds: float,
    ):
        self._name = name
        self._pipes: list[Any] = []
        self.processes: list[Any] = []
        self._ended, self._owner = False, os.getpid()
        try:
            until = time.monotonic() + seconds
            self._start(makers, bounds)
            made = self._made(until, seconds)
            self.observation_space, self.action_space, self.render_fps = made
            self._observations = self._share_memory()
        except BaseException:
            self.end(0.0)
            raise

    def reset(self, seeds: list[int], seconds: float) -> Any:
        """The observations [B, ...]. Raises one of DEAD where a worker is dead or late."""
        for pipe, seed in zip(self._pipes, seeds, strict=True):
            pipe.send(("reset", seed))
        self._receive(seconds)
        return self._observation()

    def step(self, actions: list[Any], seconds: float) -> tuple[Any, ...]:
        """(observation, reward, terminated, truncated, success), [B, ...]; raises as `reset`.

        Takes an action for each environment. The step after an episode's end resets it.
        """
        for pipe, one in zip(self._pipes, actions, strict=True):
            pipe.send(("step", one))
        rows = zip(*self._receive(seconds), strict=True)
        return self._observation(), *map(np.array, rows)

    def render(self, seconds: float) -> np.ndarray:
        """What environment 0 draws, uint8 [H, W, 3]; raises as `reset`."""
        self._pipes[0].send(("render", None))
        if not self._pipes[0].poll(seconds):
            raise TimeoutError(f"no picture within {seconds:g} s")
        return self._answer(0)

    def end(self, seconds: float) -> None:
        """Lets the environments close, then kills the workers and what these started."""
        if self._ended or os.getpid() != self._owner:  # or in a fork of that process
            return
        self._ended = True
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # of a worker that is dead already
                pipe.send(("close", None))
        started = [process for process in self.processes if process.pid is not None]
        deadline = time.monotonic() + seconds
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        for process in started:
            process.join(10.0)
        for pipe in self._pipes:
            pipe.close()

    def __del__(self):
        self.end(0.0)  # multiprocessing would wait for them when this process ends

    def _start(self, makers: list[Callable[[], Any]], bounds: bool) -> None:
        from gymnasium.vector.utils import clear_mpi_env_vars

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        with STARTING, _without_main_module(), clear_mpi_env_vars(), _without_signals():
            work = _ByValue(worker.work)
            LIVE.add(self)
            for number, make in enumerate(makers):
                ours, theirs = context.Pipe()
                with theirs:
                    sent = _pickled(self._name, make)
                    arguments = theirs, number, len(makers), sent, self._name, bounds
                    process = context.Process(target=work, args=arguments, daemon=False)
                    self._pipes.append(ours)
                    self.processes.append(process)
                    process.start()

    def _made(self, until: float, seconds: float) -> tuple[Any, Any, float | None]:
        """What `worker.work` answers first, which all environments have alike."""
        made: dict[int, tuple[Any, Any, float | None]] = {}
        while len(made) < len(self._pipes):
            waiting = [x for i, x in enumerate(self._pipes) if i not in made]
            ready = connection.wait(waiting, max(0.0, until - time.monotonic()))
            if not ready:
                raise UserError(
                    f"{self._name}: its worker processes did not start within "
                    f"{seconds:g} s (--env.start-seconds)"
                )
            for pipe in ready:
                number = self._pipes.index(pipe)
                try:
                    made[number] = self._answer(number)
                except DEAD as error:
                    raise UserError(
                        f"{self._name}: its worker process {self._death_of(number)} while "
                        "it made the environment; what it printed is above"
                    ) from error
        for number, other in made.items():
            if other != made[0]:
                raise UserError(
                    f"{self._name}: environments 0 and {number} of a batch differ: "
                    f"{' '.join(f'{made[0]} and {other}'.split())}; make all alike"
                )
        return made[0]

    def _death_of(self, number: int) -> str:
        process = self.processes[number]
        process.join(1.0)
        code = process.exitcode
        if code is not None and code < 0:
            return f"died by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _share_memory(self) -> Any:
        """The workers' observations [B, ...], as they write them."""
        space, batch_size = self.observation_space, len(self._pipes)
        leaves = jax.tree.leaves(worker.arrays(space, batch_size))
        size = sum(worker.aligned(x.nbytes) for x in leaves)
        with _memory_file() as file:
            os.truncate(file, size)
            for pipe, process in zip(self._pipes, self.processes, strict=True):
                reduction.send_handle(pipe, file, process.pid)
            return worker.arrays(space, batch_size, mmap.mmap(file, size))

    def _observation(self) -> Any:
        """A copy, as the workers write the next ones to the same place."""
        return jax.tree.map(np.copy, self._observations)

    def _receive(self, seconds: float) -> list[Any]:
        """An answer of each worker."""
        until = time.monotonic() + seconds
        answers = []
        for number, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, until - time.monotonic())):
                raise TimeoutError(f"no answer within {seconds:g} s")
            answers.append(self._answer(number))
        return answers

    def _answer(self, number: int) -> Any:
        """What a worker answers; raises what its environment raised."""
        succeeded, answer = self._pipes[number].recv()
        if succeeded:
            return answer
        error, trace = answer
        error.add_note(f"raised by {self._name}, in a worker process")
        error.add_note(f"worker process {number}: {trace}")
        raise error


@atexit.register
def _end_all() -> None:
    """Before multiprocessing would wait for them; no worker starts any more."""
    STARTING.acquire()
    for workers in [*LIVE]:
        workers.end(0.0)


class _ByValue:
    """A function that a process need not import."""

    def __init__(self, function: Callable):
        import cloudpickle

        self._pickled = cloudpickle.dumps(function)

    def __reduce__(self):
        import cloudpickle

        return cloudpickle.loads, (self._pickled,)


def _pickled(name: str, make: Callable[[], Any]) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(make)
    except Exception as error:  # pickling runs methods of any class
        raise UserError(
            f"{name}: what makes it cannot be sent to a worker process: "
            f"{describe(error)}; define it in a module, and name that"
        ) from error


@contextlib.contextmanager
def _memory_file() -> Iterator[int]:
    """A file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("observations")
    else:
        file, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    """Processes that start meanwhile do not get what a terminal or a scheduler sends to all.

    `worker.work` lets them through once the worker has a group of its own.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, worker.ENDING)
    try:
        resource_tracker.ensure_running()  # which unblocks some of them
        signal.pthread_sigmask(signal.SIG_BLOCK, worker.ENDING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Processes that start meanwhile do not import the main module, which would import JAX.

    What is defined in the main module is pickled by value, and so is our part of a worker.
    """
    import cloudpickle

    from sebulba.host_environments import dm, masked

    main = sys.modules["__main__"].__dict__
    hidden = {name: main.pop(name, None) for name in ("__spec__", "__file__")}
    main["__spec__"] = None
    ours = (checking, dm, guarded, masked, spaces, worker)
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)
        main.update({name: x for name, x in hidden.items() if x is not None})
