"""What the tests of a file share."""

import pytest

from sebulba import actor, dynamic_actor, learner
from tests.jitted import compiled_once


@pytest.fixture(autouse=True, scope="module")
def programs_of_a_run():
    with compiled_once(actor, dynamic_actor, learner):
        yield
