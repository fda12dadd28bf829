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
        read=lambda metrics, failures: [{"episodes": 0}],
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


def test_a_long_run_reports_early_and_a_resumed_one_at_the_same_updates():
    found = reports.make_reports(steps=1, total_steps=1_000, updates=None)
    due = list(itertools.islice(_due(found, 0), 8))
    assert due == [1, 2, 4, 8, 10, 20, 30, 40]
    for done in range(41):
        assert next(_due(found, done)) == min(x for x in [*due, 50] if x > done)
        assert found.last(done) == max(x for x in [0, *due] if x <= done)


def test_chosen_reports_have_no_early_ones():
    found = reports.make_reports(steps=1, total_steps=100, updates=30)
    assert list(_due(found, 0)) == [30, 60, 90, 100]


def _due(found, done):
    while done < found.total_updates:
        done = found.next(done)
        yield done
