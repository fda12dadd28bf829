"""The watchdog of a host: ends it when another host fails or when nothing makes progress.

A host that fails while others wait for it in a collective would leave them hanging. So all
of them end with its exit code, and are restarted from their checkpoint: JAX knows no other
recovery (https://docs.jax.dev/en/latest/fault_tolerance.html).

The exit code is 0 only if every host came to its end: hosts wait for one another there.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from podracer.errors import UserError

STALL = "PODRACER_STALL_SECONDS"  # environment variable: another limit
STALL_SECONDS = 600.0  # without a report or a checkpoint
EVALUATION_SECONDS = 3600.0  # that host 0 may evaluate, if more than the limit
POLL_SECONDS = 1.0
LAST_SECONDS = 5.0  # for others to hear of a failure, and host 0 to show it
END_SECONDS = 3600.0  # that a host may still work after the others have ended
FAILED, ENDED = "podracer/failed", "podracer/ended"
EVALUATES = "podracer/evaluates"  # there while host 0 does

_watch: "_Watch | None" = None


def start(client: Any, host: int, hosts: int) -> None:
    """Starts the watchdog, a thread that lives as long as the process; once is enough.

    Args:
      client: of JAX's key-value service.
      host: the index of this host.
      hosts: the number of hosts.

    Raises:
      UserError: PODRACER_STALL_SECONDS is not a number above 0.
    """
    global _watch
    if _watch:
        return
    text = os.environ.get(STALL) or str(STALL_SECONDS)
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not limit > 0.0:
        raise UserError(
            f"{STALL} is {text!r}; it must be a number of seconds above 0 (inf: no limit)"
        )
    _watch = _Watch(client, host, hosts, limit)
    _watch.start()
    atexit.register(_watch.end)
    sys.excepthook = _on_exception


def moved(waits: bool = False) -> None:
    """Records progress; from the first call on, the next one is due within the limit.

    With `waits`, this host is about to wait for others and gets LAST_SECONDS more, so
    that the host that stalls is the one that is reported.
    """
    if _watch:
        _watch.moved = time.monotonic() + (LAST_SECONDS if waits else 0.0)


def at_rest() -> None:
    """No progress is expected until the next `moved`."""
    if _watch:
        _watch.moved = None


@contextlib.contextmanager
def evaluating() -> Iterator[None]:
    """Host 0 evaluates in the block, for EVALUATION_SECONDS at most; the others wait."""
    if not _watch:
        yield
        return
    with _watch.evaluating():
        yield


def leave(code: int, why: str) -> None:
    """Ends this host and all others at once; returns if there are none.

    `sys.exit` would wait for the others, which wait for this one.
    """
    if _watch and code:
        _watch.fail(code, why)


def _on_exception(kind: type, error: BaseException, trace: Any) -> None:
    traceback.print_exception(kind, error, trace)
    leave(1, "".join(traceback.format_exception(kind, error, trace)))


class _Watch(threading.Thread):
    def __init__(self, client: Any, host: int, hosts: int, limit: float):
        super().__init__(name="watch", daemon=True)
        self._client, self._host, self._hosts = client, host, hosts
        self._limit = limit  # seconds
        self._ended = threading.Event()
        self._ending = threading.Lock()  # held by the thread that ends the process
        self.moved: float | None = None
        self._waited = 0.0  # until when this host has waited for an evaluation

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """See above; the others hear of it."""
        self._client.key_value_set(f"{EVALUATES}/{self._host}", "1")
        more = max(0.0, EVALUATION_SECONDS - self._limit)
        self.moved = time.monotonic() + more
        try:
            yield
        finally:
            self.moved = time.monotonic()
            self._client.key_value_delete(f"{EVALUATES}/{self._host}")

    def end(self) -> None:
        """Waits for the other hosts to end, too, then stops the watchdog.

        Until then a failure of theirs is this host's: JAX's own wait, which follows, would
        end all hosts if one worked for five more minutes (a final evaluation, say).
        """
        deadline = time.monotonic() + END_SECONDS
        try:
            self._client.key_value_set(f"{ENDED}/{self._host}", "1")
            while len(self._client.key_value_dir_get(ENDED)) < self._hosts:
                if time.monotonic() > deadline:
                    self.fail(1, f"others run {END_SECONDS:g} s longer than this host")
                time.sleep(POLL_SECONDS / 10)
        except Exception as error:  # noqa: BLE001 whatever it is, host 0 is gone
            self._host_0_is_gone(error)
        self._ended.set()
        self.join(2 * POLL_SECONDS)

    def run(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self._look_for_failures()
            moved = self.moved
            if moved is None:
                continue
            if time.monotonic() - max(moved, self._waited) > self._limit:
                self._stalled()

    def _look_for_failures(self) -> None:
        try:
            failed = self._client.key_value_dir_get(FAILED)
            if self._host and self._client.key_value_dir_get(EVALUATES):
                self._waited = time.monotonic()
        except Exception as error:  # noqa: BLE001 whatever it is, host 0 is gone
            if not self._ended.is_set():
                self._host_0_is_gone(error)
            return
        for key, text in failed:
            host, failure = int(key.rpartition("/")[2]), json.loads(text)
            if host != self._host:
                self._follow(host, **failure)

    def _host_0_is_gone(self, error: Exception) -> None:
        self._say(f"host 0 is gone ({str(error).splitlines()[0][:200]})")
        os._exit(1)

    def _follow(self, host: int, code: int, why: str) -> None:
        """Ends with the exit code of the host that failed; host 0 shows the whole error."""
        self._ending.acquire()
        lines = why.strip().splitlines()
        shown = "\n".join(["", *lines]) if self._host == 0 else lines[-1]
        self._say(f"host {host} failed: {shown}")
        # Host 0 ends last: JAX aborts a process that outlives it, with another exit code.
        time.sleep(POLL_SECONDS if self._host else LAST_SECONDS)
        os._exit(code)

    def _stalled(self) -> None:
        why = f"host {self._host} has made no progress for {self._limit:g} s"
        self._say(f"{why}; the stacks of its threads:")
        faulthandler.dump_traceback(all_threads=True)
        self.fail(1, why)

    def fail(self, code: int, why: str) -> None:
        """Tells the others and ends, unless this host failed only because another did."""
        self._look_for_failures()
        self._ending.acquire()
        self._ended.set()
        try:
            failure = json.dumps({"code": code, "why": why})
            self._client.key_value_set(f"{FAILED}/{self._host}", failure)
        except Exception:  # noqa: BLE001, S110 host 0 is gone, which ends all
            pass
        if self._host == 0:  # whose process serves the key-value service
            time.sleep(LAST_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _say(self, line: str) -> None:
        print(
            f"[host {self._host} of {self._hosts}] {line}", file=sys.stderr, flush=True
        )
