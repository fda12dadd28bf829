"""Progress: a live bar on a terminal, few plain lines elsewhere, nothing when quiet."""

import math
import os
import pty
import re
import subprocess
import sys

import pytest

from podracer.metrics import recent
from podracer.runs import progress
from podracer.runs.progress import Progress


def metrics(steps, mean_return=math.nan, episodes=0, seconds=1.0):
    return {
        "steps": steps,
        "steps_per_second": 1000 / seconds,
        "seconds": seconds,
        "compile_seconds": 3.14,
        "episodes": episodes,
        "episode_return": mean_return,
    }


def show(total, rows, **options):
    with Progress(total, "impala on catch", **options) as shown:
        for row in rows:
            shown.update(row)
    return shown


def test_plain_lines_are_few(capsys):
    show(1_000_000, [metrics(1000 * i, 0.5, 10) for i in range(1, 1001)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    compiling, compiled, *lines = out.splitlines()
    assert compiling == "impala on catch: compiling"
    assert compiled == "impala on catch: compiled in 3.1 s"
    assert lines[5] == " 50%  500k/1M steps  1k steps/s  return 0.5  ETA 0:08:20"
    assert lines[-1] == "100%  1M/1M steps  1k steps/s  return 0.5  ETA 0:00:00"
    assert len(lines) == 11


def test_no_control_codes_outside_a_terminal_even_if_colours_are_forced(
    capsys, monkeypatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    show(1000, [metrics(1000, 0.5, 10)])
    out = capsys.readouterr().out
    assert "100%" in out and "\x1b" not in out and "\r" not in out


def test_a_long_run_is_not_remembered():
    shown = show(10**9, [metrics(i, 0.5, i % 3) for i in range(10_000)], quiet=True)
    assert len(shown._recent) <= recent.EPISODES + 1


def test_an_odd_row_of_a_damaged_file_is_left_out():
    rows = [
        {"episodes": 3, "episode_return": None},
        {"episodes": 3},
        metrics(1, 0.5, 2),
    ]
    assert recent.Recent(rows).mean_return() == 0.5


def test_a_few_lucky_episodes_have_not_reached_a_return():
    lucky = {"episodes": recent.EPISODES - 1, "episode_return": 9.0}
    assert not recent.Recent([lucky]).has_reached(1.0)
    assert recent.Recent([lucky, {"episodes": 1, "episode_return": 0}]).has_reached(1.0)


def test_a_slow_run_is_heard_of_every_minute(capsys, monkeypatch):
    clock = iter(range(100, 10_000, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    show(10**9, [metrics(1000 * i) for i in range(1, 31)])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[1] for line in lines] == [
        "1k/1B",
        "7k/1B",
        "13k/1B",
        "19k/1B",
        "25k/1B",
    ]


def test_quiet(capsys):
    show(1000, [metrics(1000)], quiet=True)
    assert capsys.readouterr() == ("", "")


def test_the_mean_return_is_of_a_hundred_episodes_or_what_there_is(capsys):
    def mean_return(*rows):
        summary = show(1000, [metrics(1, *row) for row in rows]).summary()
        return re.match(r"mean return (\S+)", summary)[1].rstrip(",")

    assert mean_return() == mean_return((math.nan, 0)) == "-"
    assert mean_return((1.0, 30), (math.nan, 0), (4.0, 60)) == "3"
    assert mean_return((1.0, 5000), (7.0, 1)) == "1"
    assert mean_return((1.0, 5000), (7.0, 100)) == "7"
    assert mean_return((1.0, 1), (2.0, 50), (4.0, 50)) == "3"


def test_a_return_is_no_longer_shown_where_no_episode_has_ended_lately(capsys):
    rows = [metrics(100, -1.0, 3), *(metrics(100 * i) for i in range(2, 11))]
    show(1000, rows)
    shown = [
        line.split("return ")[1] for line in capsys.readouterr().out.splitlines()[2:]
    ]
    assert shown[0].startswith("-1 (3 ended)") and shown[1].startswith("-  ETA")
    assert all(line.startswith("-  ") for line in shown[1:])


def test_the_advice_where_few_episodes_end():
    def advice(*finished):
        rows = [
            metrics(100 * i, -1.0, n) | {"finished_share": share}
            for i, (n, share) in enumerate(finished, 1)
        ]
        return show(1000, rows, quiet=True).advice()

    assert advice() == advice((1, 1.0)) == advice(*4 * [(0, 0.0), (1, 2.0)]) == ""
    assert "few episodes end" in advice(*10 * [(3, 0.1)])
    assert "no episode ended" in advice(*10 * [(0, 0.0)])
    lucky_at_first = advice(*5 * [(9, 1.0)], *5 * [(1, 0.1)])
    assert "few episodes end" in lucky_at_first and "time limit" in lucky_at_first


def test_a_resumed_run_knows_its_last_episodes(capsys):
    before = [metrics(1, 1.0, 200), metrics(2, 5.0, 60)]
    assert show(1000, [], before=before).summary().startswith("mean return 1.92,")
    shown = show(1000, [metrics(3, 7.0, 40)], before=before)
    assert shown.summary().startswith("mean return 5.8,")


@pytest.mark.parametrize("total", [1, 10**18])
def test_runs_of_any_length(capsys, total):
    """Steps may pass the total by part of an update; an endless run has an ETA too."""
    show(total, [metrics(2**40 + 5, seconds=1e-6)])
    assert re.search(r"ETA (\d+:\d\d:\d\d|>999d)$", capsys.readouterr().out.strip())


def test_no_speed_yet(capsys):
    """Sebulba's first trajectory is all compilation: it has no time and no speed."""
    untimed = metrics(10) | {"seconds": 0.0, "steps_per_second": math.nan}
    assert show(1000, [untimed]).summary().endswith(", - steps/s")
    assert capsys.readouterr().out.strip().endswith("ETA -")
    summary = show(1000, [untimed, metrics(20, seconds=10)]).summary()
    assert summary.endswith(", 100 steps/s")
    assert capsys.readouterr().out.count("compiled in") == 1


@pytest.mark.parametrize(
    "seconds, text",
    [
        (7.4, "0:00:07"),
        (3_661, "1:01:01"),
        (172_799, "47:59:59"),
        (172_800, "2d 00h"),
        (86_400 * 93 + 3_600 * 4, "93d 04h"),
        (1e12, ">999d"),
    ],
)
def test_an_eta_is_short(seconds, text):
    assert progress._clock(seconds) == text


def in_a_terminal(program, columns=100):
    """What a program writes to a terminal so wide, and its exit code."""
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=its_end,
        stderr=its_end,
        env=os.environ | {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "20"},
        cwd=os.getcwd(),
    )
    os.close(its_end)
    written = b""
    try:
        while chunk := os.read(terminal, 4096):
            written += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    return written.decode(), process.wait(timeout=300)


PROGRAM = """
import sys, time
sys.path.insert(0, {folder!r})
from test_progress import metrics
from podracer.runs.progress import Progress
with Progress(1000, "impala [on] catch") as shown:
    time.sleep(0.2)
    shown.update(metrics(500, 0.25, 10))
    time.sleep(0.2)
    print("a line in between")
    {end}
"""


@pytest.mark.parametrize("end", ["pass", "raise KeyboardInterrupt", "raise OSError"])
def test_a_live_bar_leaves_the_terminal_as_it_was(end):
    program = PROGRAM.format(folder=os.path.dirname(__file__), end=end)
    written, code = in_a_terminal(program)
    assert code == (0 if end == "pass" else -2 if "Keyboard" in end else 1), written
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert written.count(hide) == written.count(show) == 1
    assert written.index(hide) < written.index(show)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written)
    assert "impala [on] catch: compiling" in text
    assert "impala [on] catch: compiled in 3.1 s" in text
    line = "━ 500/1k steps  1k steps/s  return 0.25 (10 ended)  ETA 0:00:00"
    assert line in text
    assert "a line in between" in text


LONGEST = """
import sys, time
sys.path.insert(0, {folder!r})
from test_progress import metrics
from podracer.runs.progress import Progress
with Progress(987_600_000_000, "batch_ppo on Phoenix-v5") as shown:
    shown.update(metrics(123_400_000_000, -12_340.0, 99, seconds=0.00123))
    time.sleep(0.2)
"""


def test_the_longest_line_fits_into_80_columns():
    program = LONGEST.format(folder=os.path.dirname(__file__))
    written, code = in_a_terminal(program, columns=80)
    assert code == 0, written
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written)
    last = "123B/988B steps  813k steps/s  return -12.3k (99 ended)  ETA 12d 07h"
    (line,) = {line for line in re.split(r"[\r\n]+", text) if "return" in line}
    assert line.endswith(last) and len(line) <= 80 and "━" in line
