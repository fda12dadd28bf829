"""Lineages from rows written by hand: of every kind, and of damaged populations."""

import json
import math
import shutil

import numpy as np
import pytest

from podracer.errors import UserError
from podracer.runs import lineage
from podracer.runs.lineage import Link, Stay
from tests.populations import row, rows, write


def links(history, member):
    return [
        (link.steps, link.member, link.hyperparameters["learning_rate"])
        for link in lineage.of_member(history, member)
    ]


@pytest.fixture(name="population")
def _population(tmp_path):
    """Three intervals of four members.

    0 keeps its learner. 1 takes over 0, and then 2. 2 takes over 1, which takes over 2 at the
    same time. 3 takes over 2, which is itself replaced later.
    """
    return write(
        tmp_path / "population",
        [*rows(0), *rows(1), *rows(2, mean_return=1.0)],
        [*rows(0, rate=0.2), *rows(1, 0, rate=0.3), *rows(2, 2, rate=0.4)],
        [*rows(0, rate=0.5), *rows(1, rate=0.5), *rows(2, 1, 0.6, mean_return=3.0)],
        [*rows(0, rate=0.7), *rows(1, 2, rate=0.8), *rows(2, rate=0.8)],
    )


def test_a_learner_that_was_never_taken_over(population):
    history = lineage.read(population)
    assert links(history, 0) == [(0, 0, 0.1), (100, 0, 0.1), (200, 0, 0.1)]
    assert lineage.of_member(history, 0)[0] == Link(0.0, 0, {"learning_rate": 0.1})
    assert history.starts == {0: 0, 1: 100, 2: 200}
    assert history.ranges == {"learning_rate": (1e-4, 1e-1)}


def test_a_member_that_took_over_twice(population):
    assert links(lineage.read(population), 1) == [
        (0, 2, 0.5),
        (100, 2, 0.5),
        (200, 1, 0.4),
    ]


def test_two_members_that_took_over_each_other(population):
    """The learner of 2 was in 1 before, and in 0 before that."""
    history = lineage.read(population)
    assert links(history, 2) == [(0, 0, 0.1), (100, 1, 0.3), (200, 2, 0.6)]
    assert lineage.way(history, 2) == [Stay(0, 0), Stay(1, 1), Stay(2, 2)]


def test_a_learner_of_a_member_that_was_replaced_later(population):
    assert links(lineage.read(population), 3) == [
        (0, 2, 0.5),
        (100, 3, 0.8),
        (200, 3, 0.8),
    ]


def test_a_member_that_failed_has_a_gap(tmp_path):
    """It went on with its own learner, and takes over another's in the last interval."""
    history = lineage.read(
        write(tmp_path / "x", [*rows(0), *rows(2)], [*rows(0), *rows(1), *rows(2, 0)])
    )
    assert links(history, 1) == [(0, 0, 0.1), (200, 1, 0.1)]


def test_what_is_said_of_it(population):
    history = lineage.read(population)
    assert lineage.best(history) == 2
    assert lineage.takeovers(history) == 4
    first, second = lineage.described(history)
    assert first == (
        "best: member-2, mean return 3 in the last interval; learners were taken over 4 "
        "times, 2 of them on its way"
    )
    assert second == "at the end: learning_rate 0.6"


def test_lives_begin_where_a_learner_is_taken_over(population):
    found = [*lineage.lives(lineage.read(population))]
    assert found[0] == (None, [Stay(i, 0) for i in range(3)])
    assert found[1:4] == [(None, [(0, 1)]), (0, [(1, 1)]), (2, [(2, 1)])]
    assert len(found) == 4 + 4


def test_scores_weigh_episodes_and_are_of_the_last_interval(tmp_path):
    few, many = (
        row(250, 2, mean_return=0.0, episodes=1),
        row(300, 2, mean_return=4.0, episodes=3),
    )
    folder = write(tmp_path / "x", [*rows(0, mean_return=9.0), few, many], rows(0))
    found = lineage.scores(lineage.read(folder))
    assert found[0] == 3.0 and math.isnan(found[1])


def test_a_failed_member_is_not_the_best(population):
    state = {"state": "failed", "started": 0}
    (population / "member-2" / "state.json").write_text(json.dumps(state))
    history = lineage.read(population)
    assert lineage.scores(history)[2] == -np.inf
    assert lineage.best(history) == 0


def test_an_interval_without_an_episode_yet(tmp_path):
    """As where it was killed after an adaptation: the last one that has any decides."""
    unfinished = row(250, 2, mean_return=None, episodes=0)
    folder = write(
        tmp_path / "x",
        [*rows(0), *rows(1, mean_return=1.0), unfinished],
        [*rows(0, mean_return=2.0), *rows(1), unfinished],
    )
    assert lineage.best(lineage.read(folder)) == 0


def test_no_episode_at_all(tmp_path):
    folder = write(tmp_path / "x", *[[row(50, 0, mean_return=None, episodes=0)]] * 2)
    history = lineage.read(folder)
    assert lineage.chosen(history) is None
    with pytest.raises(
        UserError, match="x: no member has a mean return: all have failed"
    ):
        lineage.best(history)
    assert lineage.described(history) == [
        "no member has a mean return; learners were taken over 0 times"
    ]


def test_killed_in_its_first_interval(tmp_path):
    folder = write(tmp_path / "x", [row(50, 0)], [row(50, 0, mean_return=1.0)])
    history = lineage.read(folder)
    assert links(history, lineage.best(history)) == [(0, 1, 0.1)]
    empty = write(tmp_path / "y", [], [])
    with pytest.raises(UserError, match="y: no member has reported yet"):
        lineage.read(empty)


def test_a_control_has_the_intervals_of_a_population(tmp_path):
    """Its rows have none, nor hyperparameters: these are in the configurations."""
    alone = [
        {"steps": x, "episode_return": x, "episodes": 1} for x in range(10, 351, 20)
    ]
    options = {"exploit": False, "total_steps": 350}  # the last interval is a whole one
    history = lineage.read(write(tmp_path / "x", alone, alone, **options))
    assert history.starts == {0: 0, 1: 90, 2: 190}
    assert lineage.scores(history).tolist() == [280.0] * 2  # the mean of 210 to 350
    assert links(history, 1) == [(0, 1, 0.01), (90, 1, 0.01), (190, 1, 0.01)]
    assert lineage.described(history)[0].endswith(
        "a control: no learner was taken over"
    )


@pytest.mark.parametrize("agent", [None, 3, {}, {"learning_rate": "fast"}])
def test_a_control_whose_hyperparameters_are_not_on_record(tmp_path, agent):
    alone = [{"steps": 50, "episode_return": 1.0, "episodes": 1}] * 2
    alone += [{"steps": 60, "episode_return": 1.0, "episodes": -2}]  # damaged, too
    folder = write(tmp_path / "x", alone, exploit=False)
    path = folder / "member-0" / "config.json"
    text = json.loads(path.read_text())
    text["config"]["train"]["agent"] = agent
    path.write_text(json.dumps(text))
    history = lineage.read(folder)
    assert lineage.of_member(history, lineage.best(history)) == [Link(0, 0, {})]
    assert lineage.described(history)[-1] == "at the end: "


def test_a_missing_member_matters_where_the_lineage_needs_it(population):
    shutil.rmtree(population / "member-0")
    said = []
    history = lineage.read(population, said.append)
    assert said == [f"{population}: no rows of member-0"]
    assert links(history, 3)[0] == (0, 2, 0.5)
    line = (
        "member-1: it took over the learner of member-0 after 100 steps, of which there are "
        "no rows before: copy the population's whole folder"
    )
    with pytest.raises(UserError, match=line):
        lineage.of_member(history, 2)


def test_a_member_copied_alone(population, tmp_path):
    alone = shutil.copytree(population / "member-3", tmp_path / "alone")
    assert not lineage.is_population(alone)
    with pytest.raises(UserError, match="alone: a single member, whose history is in"):
        lineage.read(alone)
    with pytest.raises(UserError, match="holds no population; train one with"):
        lineage.read(tmp_path)


def test_damaged_rows_are_left_out(population):
    path = population / "member-0" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[3:4] = ["{broken\n", '{"steps": 200, "population/interval": 1}\n']
    path.write_text("".join(lines))
    said = []
    history = lineage.read(population, said.append)
    assert [len(x) for x in history.rows[0].values()] == [2, 1, 2]
    assert [x.partition(": ")[2] for x in said] == [
        "left out 1 line that cannot be read: reports after step 150",
        "left out 1 row without their interval and parent",
    ]


@pytest.mark.parametrize("parent", [7, 1e30, -4])
def test_a_parent_that_cannot_be(tmp_path, parent):
    folder = write(tmp_path / "x", [*rows(0), *rows(1, parent)], rows(0))
    history = lineage.read(folder)
    if parent < 0:
        assert len(lineage.of_member(history, 0)) == 2
    else:
        with pytest.raises(UserError, match="no rows before"):
            lineage.of_member(history, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"population": 2.5},
        {"population": 10**9},
        {"pbt": None},
        {"pbt": {"interval": None, "exploit": True, "fields": 3}},
        {"pbt": {"interval": "soon", "exploit": True, "fields": []}},
        {"pbt": {"interval": 1, "exploit": True, "fields": ["learning_rate=9..1"]}},
        {"total_steps": None, "pbt": {"interval": None}},
    ],
)
def test_a_damaged_configuration_is_one_line(population, change):
    path = population / "together.json"
    text = json.loads(path.read_text())
    text["config"]["train"] |= change
    path.write_text(json.dumps(text))
    with pytest.raises(UserError, match=r"together\.json: damaged, or not"):
        lineage.read(population)
