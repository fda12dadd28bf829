"""These tests are of all kernels."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def each(all_kernels):
    """All of them are on."""
