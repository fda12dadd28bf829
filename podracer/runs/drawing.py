"""curve.png of a run that is under way, drawn in a thread beside the training loop."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from podracer.errors import UserError
from podracer.files import writing
from podracer.metrics import read
from podracer.runs.run_folder import CURVE, METRICS

DRAW_SECONDS = 30.0  # between two pictures, at least
DRAW_SHARE = 0.02  # of the run's time, at most: a long curve takes longer to draw
STOP_SECONDS = 60.0  # to wait at the end for a picture that is being drawn


@contextlib.contextmanager
def drawing(folder: Path, title: str) -> Iterator[Callable[[], None]]:
    """Yields a function that starts to draw curve.png where a new picture is due.

    A thread draws it, one at a time, while training continues; the function raises
    UserError if the last picture could not be written. On leaving, that thread is waited
    for, `STOP_SECONDS` at most, and the last picture is drawn, whatever ended the run.
    """
    curve = _Curve(folder, title)
    try:
        yield curve.draw_if_due
    except BaseException:
        # The first error is the one to report; the folder may be gone.
        with contextlib.suppress(UserError):
            curve.finish()
        raise
    curve.finish()


class _Curve:
    """The picture, and the thread that draws it, if any."""

    def __init__(self, folder: Path, title: str):
        self._folder, self._title = folder, title
        self._next = time.monotonic() + DRAW_SECONDS
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._seconds = 0.0  # that the last picture took

    def draw_if_due(self) -> None:
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._collect()
            pause = max(DRAW_SECONDS, self._seconds / DRAW_SHARE)
            self._next = time.monotonic() + pause
        elif time.monotonic() >= self._next:
            # A daemon: a file system that hangs must not keep the process alive.
            self._thread = threading.Thread(
                target=self._draw_in_thread, name="curve", daemon=True
            )
            self._thread.start()

    def finish(self) -> None:
        """The last picture, in the caller's thread."""
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                raise UserError(
                    f"{self._folder / CURVE}: not drawn: the last picture still is, "
                    f"after {STOP_SECONDS:g} s"
                )
        _draw(self._folder, self._title)

    def _draw_in_thread(self) -> None:
        started = time.monotonic()
        try:
            _draw(self._folder, self._title)
        except Exception as error:  # noqa: BLE001 raised in the training loop
            self._error = error
        self._seconds = time.monotonic() - started

    def _collect(self) -> None:
        """Forgets a thread that has ended. Raises what it raised."""
        self._thread = None
        if self._error is not None:
            raise self._error


def _draw(folder: Path, title: str) -> None:
    from podracer.runs import plot  # matplotlib is slow to import

    with writing(folder / CURVE):
        plot.save(plot.curve(read(folder / METRICS), title), folder / CURVE)
