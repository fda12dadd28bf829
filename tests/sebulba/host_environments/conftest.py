"""Fixtures of tests whose environments step in worker processes."""

import pytest


@pytest.fixture
def closing():
    """Closes what it is given, at the end of the test."""
    made = []
    yield lambda environment: made.append(environment) or environment
    for environment in made:
        environment.close()
        assert not any(p.is_alive() for p in environment._workers.processes)
