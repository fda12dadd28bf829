"""metrics.jsonl: whole lines, valid JSON, whatever happens to the disk or the process."""

import contextlib
import json
import math
import resource

import numpy as np
import pytest

from podracer.errors import UserError
from podracer.metrics import VOCABULARY, JsonLines, human, read


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


def test_a_full_disk_says_so(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
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
