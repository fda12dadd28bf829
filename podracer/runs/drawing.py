"""curve.png of a run that is under way, drawn in a thread beside the training loop."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Self

from podracer.errors import UserError
from podracer.files import writing
from podracer.metrics import read
from podracer.runs.run_folder import CURVE, METRICS

DRAW_SECONDS = 30.0  # between two pictures, at least
DRAW_SHARE = 0.02  # of the run's time, at most: a long curve takes longer to draw
STOP_SECONDS = 60.0  # to wait at the end for a picture that is being drawn


class Curve:
    """curve.png, drawn in a thread, one at a time, while training continues.

    On leaving, the last picture is drawn, whatever ended the run, after that of the thread,
    which is waited for `STOP_SECONDS` at most. Raises UserError where it cannot write.
    """

    def __init__(self, folder: Path, title: str):
        self._folder, self._title = folder, title
        self._next = time.monotonic() + DRAW_SECONDS
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._seconds = 0.0  # that the last picture took

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # The first error is the one to report; the folder may be gone.
        with contextlib.suppress(*[UserError] * any(error)):
            self._finish()

    def draw_if_due(self) -> None:
        """Starts the thread where a new picture is due. Raises what the last one did."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            if self._error is not None:
                raise self._error
            pause = max(DRAW_SECONDS, self._seconds / DRAW_SHARE)
            self._next = time.monotonic() + pause
        elif time.monotonic() >= self._next:
            # A daemon: a file system that hangs must not keep the process alive.
            self._thread = threading.Thread(
                target=self._draw_in_thread, name="curve", daemon=True
            )
            self._thread.start()

    def _finish(self) -> None:
        """Draws the last picture, in the caller's thread."""
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


def _draw(folder: Path, title: str) -> None:
    from podracer.runs import plot  # matplotlib is slow to import

    with writing(folder / CURVE):
        plot.save(plot.curve(read(folder / METRICS), title), folder / CURVE)
