"""What the tests of a file share."""

import pytest

from anakin import population, training
from tests.jitted import compiled_once


@pytest.fixture(autouse=True, scope="module")
def programs_of_a_run():
    with compiled_once(training, population):
        yield
