"""What the tests of a file share."""

import functools

import pytest

from sebulba import actor, dynamic_actor, learner


@pytest.fixture(autouse=True, scope="module")
def programs_of_a_run():
    """Runs of one agent, the same object, on the same cores are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (actor, dynamic_actor, learner):
            make_programs = functools.cache(module.make_programs)
            patch.setattr(module, "make_programs", make_programs)
        yield
