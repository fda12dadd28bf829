"""What a worker process runs: it makes one environment and answers the main process.

Runs without JAX: its modules are sent to the process, see `workers`.
"""

import faulthandler
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sebulba.host_environments import guarded

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # of the main process's group
ALIGNMENT = 64  # bytes, between two arrays of the shared memory
CLOSE_SECONDS = 2.0  # for an environment to close when the main process has died


def work(
    pipe: Connection,
    number: int,
    batch_size: int,
    make: bytes,
    name: str,
    bounds: bool,
) -> None:
    """The worker's life. Each answer is (True, result) or (False, (exception, traceback)).

    The first answer is what `make` made: (observation_space, action_space, pictures per
    second, or None where it draws none). To `reset`, a seed, and `step`, an action, it writes
    the observation into the memory that it was sent and answers (reward, terminated,
    truncated, success: None where it does not say); after an episode's end a step resets. To `render` it answers a picture.

    Args:
      pipe: to the main process.
      number: of the worker, in its batch.
      batch_size: B, the number of workers.
      make: a pickled function that makes the gymnasium.Env.
      name: of the environment, for messages.
      bounds: whether observations are compared with their bounds.
    """
    # A process group of its own: signals to the main process's group do not reach it,
    # and processes that the environment starts end with it.
    os.setpgrp()
    for ending in ENDING:  # blocked so far; signals sent to the old group are dropped
        before = signal.signal(ending, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ending})
        signal.signal(ending, before)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)  # prints where a signal ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _answer_all(pipe, number, batch_size, make, name, bounds)
    except (EOFError, OSError):  # the main process has died
        os.killpg(0, signal.SIGKILL)


def _end_with_parent() -> None:
    """Ends the process, in whatever step it is, some time after the main process."""
    multiprocessing.parent_process().join()
    time.sleep(CLOSE_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _answer_all(pipe, number, batch_size, make, name, bounds) -> None:
    """Answers until it is told to close. Raises EOFError or OSError without a main process."""
    import cloudpickle

    environment: Any = None
    over = False  # in the timestep before

    def made() -> tuple[Any, Any, float | None]:
        nonlocal environment
        environment = guarded.guarded(name, lambda: pickle.loads(make)(), bounds)
        spaces = environment.observation_space, environment.action_space
        return *spaces, environment.render_fps()

    def played() -> tuple[float, bool, bool, bool | None]:
        nonlocal over
        success = None
        if command == "step" and not over:
            observation, reward, terminated, truncated, info = environment.step(value)
            success = info.get("success")
        else:
            observation, _ = environment.reset(
                seed=value if command == "reset" else None
            )
            reward, terminated, truncated = 0.0, False, False
        write(observations, number, observation)
        over = terminated or truncated
        return reward, terminated, truncated, success

    answer = _attempt(made)
    # By value: a space may be of a class that the main module defines.
    pipe.send_bytes(cloudpickle.dumps(answer))
    if environment is None:
        return
    try:
        memory = mmap.mmap(reduction.recv_handle(pipe), 0)
        observations = arrays(environment.observation_space, batch_size, memory)
        while True:
            command, value = pipe.recv()
            if command == "close":
                return
            draws = command == "render"
            pipe.send(_attempt(environment.picture if draws else played))
    finally:
        environment.close()


def _attempt(what: Callable[[], Any]) -> tuple[bool, Any]:
    """(True, what the function returns) or (False, (what it raises, the traceback))."""
    try:
        return True, what()
    except BaseException as error:  # noqa: BLE001 the main process raises it
        return False, (error, traceback.format_exc())


def arrays(space: Any, batch_size: int, memory: mmap.mmap | None = None) -> Any:
    """Members [B, ...] of a space as arrays that lie in the memory, or in new memory."""
    from gymnasium.vector.utils import create_empty_array

    used = 0

    def place(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        nonlocal used
        array = np.ndarray(shape, dtype, memory, used if memory else 0)
        used += aligned(array.nbytes)
        return array

    return create_empty_array(space, batch_size, fn=place)


def aligned(size: int) -> int:
    """The bytes that an array of this size takes of the memory."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def write(observations: Any, number: int, observation: Any) -> None:
    """Writes one environment's observation into the arrays [B, ...] of all."""
    if isinstance(observations, dict):
        for name, part in observations.items():
            write(part, number, observation[name])
    elif isinstance(observations, tuple):
        for part, value in zip(observations, observation, strict=True):
            write(part, number, value)
    else:
        observations[number] = observation
