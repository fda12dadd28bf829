"""`podracer compare`: groups, what differs, and a page that runs and fetches nothing."""

import base64
import html.parser
import io
import json
import re

import pytest
from PIL import Image

import podracer.__main__ as command
from podracer.errors import UserError
from podracer.metrics import JsonLines
from podracer.runs import comparison, page, run_folder, videos

ATTACK = "<script>alert('x')</script>&\"\n$x$"
EVALUATION = '{"episodes": 5, "episode_return": 2, "low": 1, "high": 3}'
VOID = ("meta", "img")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make(name, level=1.0, agent="ppo", env="catch", count=20, **train):
    config = {"agent": agent, "env": env, "train": {"seed": 0} | train}
    folder = run_folder.create(name, config)
    with JsonLines(folder / "metrics.jsonl") as lines:
        for i in range(1, count + 1):
            row = {"steps": 1000 * i, "seconds": 2.0, "compile_seconds": 3.0}
            lines.write(row | {"episodes": 5, "episode_return": level})
    return folder


class Page(html.parser.HTMLParser):
    """Its elements, its text, and that each of them is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.open += [tag] * (tag not in VOID)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def compared(capsys, *argv):
    command.compare([*map(str, argv)])
    with open("comparison.html", encoding="utf-8") as file:
        return capsys.readouterr().out, Page(file.read())


def test_seeds_are_a_group_and_only_what_differs_is_listed(capsys):
    for seed in (0, 1):
        make(f"runs/a-{seed}", 1.0 + seed, seed=seed, agent_={"rate": 0.1, "clip": 0.2})
    make("runs/b", 3.0, seed=0, agent_={"rate": 0.5, "clip": 0.2}, keep={"x": 1})
    printed, shown = compared(capsys, "runs")
    assert printed == (
        "group  agent  env    runs  return\n"
        "A      ppo    catch  2     1.5 (1 to 2)\n"
        "B      ppo    catch  1     3\n\n"
        "group  run       state    steps  time     steps/s  return\n"
        "A      runs/a-0  unknown  20k    0:00:43  500      1\n"
        "A      runs/a-1  unknown  20k    0:00:43  500      2\n"
        "B      runs/b    unknown  20k    0:00:43  500      3\n\n"
        "field        A    B\n"
        "agent_.rate  0.1  0.5\n"
        "compared in comparison.html\n"
    )
    assert "1.5 (1 to 2)" in shown.texts and "agent_.clip" not in shown.texts
    (image,) = (x for name, x in shown.attributes if name == "src")
    kind, _, data = image.partition(",")
    assert kind == "data:image/png;base64"
    size = Image.open(io.BytesIO(base64.b64decode(data))).size
    assert size == (1050, 600 + 27)  # a line of its legend


def test_nothing_of_a_run_is_markup(capsys):
    folder = make("<script>", agent=ATTACK, env=ATTACK, field=ATTACK)
    make("other", agent=ATTACK, env=ATTACK, **{ATTACK: 1, "field": 2})
    description = json.loads((folder / "config.json").read_text())
    description |= {"command": ATTACK + "\ud800", "versions": {ATTACK: ATTACK}}
    (folder / "config.json").write_text(json.dumps(description))
    (folder / f"{'x' * 9}<b>.gif").write_bytes(b"GIF89a")
    printed, shown = compared(capsys, folder, "other")
    assert not {"script", "b", "link", "iframe"} & {*shown.tags}
    assert all(line.isprintable() for line in printed.splitlines())
    assert any("<script>alert" in x for x in shown.texts)
    sources = [x for name, x in shown.attributes if name in ("src", "href", "srcset")]
    assert sources and all(x.startswith("data:") for x in sources)
    assert not [name for name, _ in shown.attributes if name.startswith("on")]


def test_videos_are_inside_unless_they_are_large_linked_or_none(
    capsys, tmp_path, monkeypatch
):
    folder = make("run")
    (folder / "a.gif").write_bytes(b"GIF89a")
    (folder / "b.mp4").write_bytes(b"\0\0\0\x20ftypisom")
    (folder / "c.gif").write_bytes(b"secret")
    (folder / "d.gif").symlink_to(folder / "a.gif")
    (folder / "e.gif").write_bytes(b"GIF89a" + bytes(100))
    monkeypatch.setattr(videos, "MOST", 100)
    printed, shown = compared(capsys, "run")
    assert "run/c.gif: not image/gif; left out" in printed
    assert "run/e.gif: more than 100 bytes; left out" in printed
    assert ("src", "data:image/gif;base64,R0lGODlh") in shown.attributes
    assert shown.tags.count("video") == 1 and "run/d.gif" not in "".join(shown.texts)
    monkeypatch.setattr(page, "MOST_VIDEOS", 10)
    printed, _ = compared(capsys, "run")
    assert "run/b.mp4: more than 10 bytes of videos in one page; left out" in printed


def test_damaged_runs_are_named_and_the_others_compared(capsys):
    make("good")
    bad, deep = make("bad"), make("deep")
    (bad / "config.json").write_text("{")
    description = json.loads((deep / "config.json").read_text())
    text = json.dumps(description).replace('"seed": 0', '"x": ' + "[" * 950 + "]" * 950)
    (deep / "config.json").write_text(text)
    printed, _ = compared(capsys, "good", "bad", "deep", "good")
    assert "bad/config.json: damaged, or not JSON; left out" in printed
    assert len(re.findall(r"^A      good", printed, re.MULTILINE)) == 1
    with pytest.raises(UserError, match="no run is left to compare"):
        command.compare(["bad"])
    with pytest.raises(UserError, match="nowhere/config.json: No such file"):
        command.compare(["good", "nowhere"])
    with pytest.raises(UserError, match=r"--html is x.txt; it must end in .html"):
        command.compare(["good", "--html", "x.txt"])


def test_runs_without_numbers_are_compared(capsys):
    make("empty", count=0)
    make("nan", float("nan"), seed=1)
    (run_folder.create("none", {}) / "evaluation.json").write_text("[" * 9)
    printed, shown = compared(capsys, "empty", "nan", "none")
    assert "A      ppo    catch  2     -" in printed
    assert "B      -      -      1     -" in printed
    assert shown.tags.count("img") == 2  # one for each environment


def test_many_runs_and_long_values_fit_80_columns(capsys):
    for i in range(50):
        make(f"runs/{'long' * 9}-{i}", i, count=2, rate=i / 7, text="x" * 90 + str(i))
    printed, shown = compared(capsys, "runs")
    assert max(map(len, printed.splitlines())) == 80
    assert printed.count("\nfield") > 10 and re.search("….*long-49 ", printed)
    assert shown.tags.count("img") == 5


@pytest.mark.parametrize(
    "name, text",
    [
        (
            "evaluation.json",
            '{"episodes": 5, "episode_return": 2, "low": 1, "high": 3}',
        ),
        (
            "evaluation.jsonl",
            EVALUATION + '\n{"episodes": 5, "episode_return": 9, "differs": ["rows"]}\n'
            '{"episodes": 5, "episode_return": 9, "env": "another"}\n'
            '{"episodes": 5, "episode_return": 9, "unfinished": 1}\n',
        ),
    ],
)
def test_an_evaluation_is_shown(capsys, name, text):
    (make("run") / name).write_text(text)
    printed, _ = compared(capsys, "run")
    assert "A      ppo    catch  1     1       2 (1 to 3)" in printed


@pytest.mark.parametrize("value", ['"x"', "true", "1e300", "[]", "null"])
def test_a_damaged_evaluation_is_none(value):
    folder = make("run")
    (folder / "evaluation.json").write_text(
        f'{{"episodes": 5, "asked": 3, "episode_return": {value}}}'
    )
    assert comparison.evaluation_of(folder, "catch") is None
    assert comparison.evaluation_of(folder, "catch", 7) is None


def test_reasons_for_doubt_are_named(capsys):
    make("a")
    make("b", count=10)
    printed, shown = compared(capsys, "a", "b")
    assert "A: not all of its runs have different seeds\n" in printed
    assert "A: its mean curve ends after 10k steps, with b\n" in printed
    assert shown.tags.count("li") == 2
