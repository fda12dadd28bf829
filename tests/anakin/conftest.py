"""What the tests of a file share."""

import functools

import pytest

from anakin import population, training


@pytest.fixture(autouse=True, scope="module")
def programs_of_a_run():
    """Runs of one agent, the same object, in equal environments are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (training, population):
            make_programs = functools.cache(module.make_programs)
            patch.setattr(module, "make_programs", make_programs)
        yield
