"""The loop on the host: what it yields where it is asked to stop."""

import itertools

import pytest

from anakin import reports


def loop(done, stopped):
    """The updates of each yield, and whether it has metrics; a state is its number of
    updates."""

    def call(state, updates, report):
        return state + int(updates), {}, {}

    found = reports.iterate(
        lambda: call,
        done,
        done,
        reports.Reports(steps=1, total_updates=10, updates=5),
        stopped,
        read=lambda metrics, failures: [{}],
    )
    return [(state, rows is not None) for state, rows in found]


@pytest.mark.parametrize("done", [0, 7])
def test_a_stop_during_compilation_still_leaves_a_state(done):
    assert loop(done, lambda: True) == [(done, False)]


def test_a_stop_at_the_end_leaves_the_report_alone():
    asked = itertools.chain(9 * [False], itertools.repeat(True))
    assert loop(10, lambda: True) == []
    assert loop(0, lambda: next(asked))[-1][0] in (5, 10)
    assert loop(0, lambda: False) == [(5, True), (10, True)]
