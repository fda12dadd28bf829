"""Clients that are closed at the end of a test."""

import threading
import time

import pytest

from sebulba.host_environments.remote.client import EnvironmentThread
from tests.sebulba.host_environments.remote.local import client


@pytest.fixture
def closing():
    """Closes clients at the end of the test, and sees their threads end."""
    made = []
    yield lambda *args, **options: made.append(client(*args, **options)) or made[-1]
    for environment in made:
        environment.close()
    deadline = time.monotonic() + 120
    while any(isinstance(t, EnvironmentThread) for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
