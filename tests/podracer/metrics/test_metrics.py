"""metrics.jsonl: whole lines, valid JSON, whatever happens to the disk or the process."""

import contextlib
import json
import math
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from podracer.agents import AGENTS, algorithm
from podracer.errors import UserError
from podracer.metrics import (
    VOCABULARY,
    WEIGHT,
    JsonLines,
    cut,
    human,
    last,
    merge,
    read,
)
from podracer.metrics.lines import TAIL
from podracer.metrics.vocabulary import NEWEST, SUM


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, *rows):
    with JsonLines(path) as lines:
        for row in rows:
            lines.write(row)


def test_rows_come_back(path):
    write(path, {"steps": 2**53 + 1, "loss/value": 0.1, "episodes": np.float32(0.5)})
    assert [*read(path)] == [{"steps": 2**53 + 1, "loss/value": 0.1, "episodes": 0.5}]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_json_cannot_say_is_null(path, number):
    write(path, {"episode_return": number})
    assert path.read_text() == '{"episode_return": null}\n'


def test_a_line_can_be_read_while_the_run_goes_on(path):
    with JsonLines(path) as lines:
        for step in range(3):
            lines.write({"steps": step})
            assert [row["steps"] for row in read(path)] == [*range(step + 1)]


@pytest.mark.parametrize("tail", ["", '{"ste', '{"steps": 9}', "x" * 1000])
def test_a_line_cut_short_is_no_line(path, tail):
    path.write_text('{"steps": 1}\n{"steps": 2}\n' + tail)
    assert [row["steps"] for row in read(path)] == [1, 2]
    write(path, {"steps": 3})
    assert [row["steps"] for row in read(path)] == [1, 2, 3]
    assert all(map(json.loads, path.read_text().splitlines()))


def test_a_full_disk_says_so(path, monkeypatch):
    full = lambda _, flags: os.open("/dev/full", flags)
    monkeypatch.setattr("podracer.metrics.lines.regular", full)
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot write: No space left"):
        write(path, {"steps": 1})


@contextlib.contextmanager
def largest_file(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_only_half_fits_is_taken_back(path):
    row = {"steps": 12345}  # 17 characters
    with (
        largest_file(40),
        pytest.raises(UserError, match="cannot write: File too large"),
    ):
        write(path, row, row, row)
    assert [*read(path)] == [row, row]
    assert path.stat().st_size == 34


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/metrics.jsonl: cannot write: Not a dir"):
        write(tmp_path / "file" / "metrics.jsonl")


def test_every_word_has_a_meaning():
    assert all(meaning for _, meaning in VOCABULARY.values())


@pytest.mark.parametrize(
    "number, text",
    [
        (0, "0"),
        (-0.9852, "-0.985"),
        (999.4, "999"),
        (999.6, "1k"),
        (1234, "1.23k"),
        (310_000, "310k"),
        (999_999, "1M"),
        (-2_100_000_000, "-2.1B"),
        (7e13, "70T"),
        (math.nan, "-"),
    ],
)
def test_human(number, text):
    assert human(number) == text


def test_merged_rows_are_what_one_row_would_have_been():
    rows = [
        {
            "steps": 10,
            "seconds": 1.0,
            "steps_per_second": 10.0,
            "episodes": 0,
            "episode_return": math.nan,
            "loss/total": 1.0,
            "lag_max": 7,
            "lost_episodes": 1,
        },
        {
            "steps": 40,
            "seconds": 3.0,
            "steps_per_second": 10.0,
            "episodes": 1,
            "episode_return": 2.0,
            "loss/total": 2.0,
            "lag_max": 1,
            "lost_episodes": 1,
        },
        {
            "steps": 80,
            "seconds": 1.0,
            "steps_per_second": 40.0,
            "episodes": 3,
            "episode_return": 6.0,
            "loss/total": 6.0,
            "lag_max": 2,
            "lost_episodes": 4,
        },
    ]
    assert merge(rows) == {
        "steps": 80,
        "seconds": 5.0,
        "steps_per_second": 16.0,
        "episodes": 4,
        "episode_return": 5.0,
        "loss/total": 3.0,
        "lag_max": 7,
        "lost_episodes": 4,
    }
    assert math.isnan(merge([rows[0], rows[0]])["episode_return"])


def test_how_rows_merge_is_said_in_words_that_there_are():
    assert {*NEWEST, *SUM, *WEIGHT, *WEIGHT.values()} <= VOCABULARY.keys()


def test_the_newest_numbers_of_a_long_file(path):
    assert last(path) == {}
    path.write_text("")
    assert last(path) == {}
    rows = [{"steps": i, "episode_return": math.nan} for i in range(10_000)]
    write(path, {"steps": -1, "kl": 1.0}, *rows, {"steps": 5, "kl": 2.0}, rows[-1])
    assert path.stat().st_size > TAIL
    assert last(path) == {"steps": 9999, "kl": 2.0}
    with open(path, "a") as file:
        file.write('{"steps": 10_000, "cut sho')
    assert last(path)["steps"] == 9999


def test_the_page_of_metrics_says_what_the_vocabulary_says():
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    of_agents = [algorithm.of(module).metrics for module in AGENTS.values()]
    assert lines == [
        f"| `{name}` | {unit} | {meaning} |"
        for words in (VOCABULARY, *of_agents)
        for name, (unit, meaning) in words.items()
    ]


ROWS = [{"steps": 10 * n, "updates": n, "kl": 0.5} for n in range(1, 6)]
NO_ROWS = {
    "NULs": b"\0" * 300,
    "nothing": b"",
    "not UTF-8": b'{"steps": 1, "updates": 1, "\xff\xfe": 2}',
    "a list": b"[1]",
    "no fields": b"{}",
    "no steps": b'{"updates": 3}',
    "null": b"null",
    "half a row": b'{"steps": 10, "upd',
    "text": b'{"steps": "10", "updates": 3}',
    "a bool": b'{"steps": true, "updates": 3}',
    "no number": b'{"steps": NaN, "updates": 3}',
    "infinite": b'{"steps": 1e999, "updates": 3}',
    "huge": b'{"steps": 1' + b"0" * 400 + b"}",
    "beyond float32": b'{"steps": 10, "updates": 3, "episodes": 1e308}',
    "a tree": b'{"steps": 10, "updates": 3, "more": {"a": 1}}',
    "deep": b"[" * 10_000,
}


@pytest.mark.parametrize("line", NO_ROWS.values(), ids=NO_ROWS)
def test_a_line_that_is_no_row_costs_that_line(path, line):
    whole = [json.dumps(row).encode() for row in ROWS]
    path.write_bytes(b"\n".join([*whole[:2], line, line, *whole[2:], line]) + b"\n")
    assert last(path) == {"steps": 50, "updates": 5, "kl": 0.5}
    said = []
    assert [*read(path, said.append)] == ROWS
    (line,) = said
    assert (
        line == f"{path}: left out 3 lines that cannot be read: reports after step 20"
    )
    cut(path, 4, said.append)
    assert [*read(path)] == ROWS[:4]
    assert said[1:] == [
        f"{path}: dropped 3 lines that cannot be read: reports after step 20"
    ]
    cut(path, 4, said.append)
    assert len(said) == 2


def test_a_row_without_updates_is_none_to_a_run_that_is_resumed(path, capsys):
    write(path, ROWS[0], {"steps": 12}, ROWS[1])
    assert len([*read(path)]) == 3
    cut(path, 9)
    assert [*read(path)] == ROWS[:2]
    assert capsys.readouterr().out == (
        f"{path}: dropped 1 line that cannot be read: reports after step 10\n"
    )


@pytest.mark.parametrize("size", [1, 100, TAIL, 3 * TAIL + 7])
@pytest.mark.parametrize("before", [0, 2])
def test_what_a_power_cut_leaves_is_removed_however_long(path, size, before):
    write(path, *ROWS[:before])
    with open(path, "ab") as file:
        file.write(b"\0" * size)
    write(path, ROWS[2])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        *ROWS[:before],
        ROWS[2],
    ]
