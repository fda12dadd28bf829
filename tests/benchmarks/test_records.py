"""The pages' figures are those of the records, and learning runs are made once."""

import dataclasses
import importlib.util
import itertools
import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import envs_jax
from benchmarks import (
    equal_steps,
    experiments,
    gallery,
    learning,
    population,
    records,
    time_to_score,
)
from benchmarks.peers import report
from podracer.agents import AGENTS
from podracer.errors import UserError
from podracer.metrics import human
from tests import populations

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
README = (ROOT / "README.md").read_text()


def rows(text):
    """The cells of a page's tables, row by row."""
    lines = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    return [[cell.strip(" *") for cell in line.split("|")] for line in lines]


def tables(text, columns):
    """The cells of those with so many columns."""
    return [row for row in rows(text) if len(row) == columns]


def section(text, heading):
    return re.search(
        rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )[1]


def test_what_agents_learn_is_written_by_the_records():
    assert (RESULTS / "learning.md").read_text() == records.page()


def test_the_small_pictures_are_drawn_from_the_records(tmp_path):
    kept = records.kept()
    for group, lines in kept.items():
        path = records.KEPT / records.small_name(group)
        assert path.exists() == (group != "built-in")  # of 21 scales
        if path.exists():
            with Image.open(path) as image:
                assert image.text["Description"].split("; ") == records.summary(
                    group, lines
                )
    records.draw_small("cheetah", kept["cheetah"], tmp_path)
    with Image.open(tmp_path / "cheetah-small.png") as drawn:
        assert drawn.text["Description"].endswith("CleanRL's TD3: 9.02k")


def test_published_figures_are_of_groups():
    groups = {task.group for task in experiments.TASKS}
    assert experiments.PUBLISHED.keys() <= groups
    page = (RESULTS / "learning.md").read_text()
    shown = [xs for x, xs in experiments.PUBLISHED.items() if x in records.kept()]
    for published in {x for xs in shown for x in xs}:
        assert str(published.mean_return) in page and published.source in page


def test_the_page_of_equal_steps_is_written_by_its_records():
    by_env = json.loads((RESULTS / "equal-steps.json").read_text())
    page = "\n".join(equal_steps.page(by_env))
    assert (RESULTS / "equal-steps.md").read_text() == page


def test_the_table_of_environments_has_the_scores_on_record():
    page = (ROOT / "docs" / "built-in.md").read_text()
    assert gallery.filled(page) == page
    assert len({cells[-1] for cells in rows(page)}) > 5


def test_speeds_of_the_readme_are_on_record():
    """Each is the median of that entrant at the work of its column, at its best cores."""
    record = json.loads((RESULTS / "peers-cpu.json").read_text())
    (_, *works), _, *table = tables(section(README, "Speed"), 5)
    assert table and works
    for entrant, *figures in table:
        for work, figure in zip(works, figures, strict=True):
            speeds = [
                report.median(row)
                for row in record["results"]
                if (row["work"], row["entrant"]) == (work.strip("`"), entrant)
            ]
            assert figure == (human(max(speeds)) if speeds else ""), (entrant, work)


@pytest.mark.parametrize(
    "name",
    [
        *("peers-cpu.json", "peers-cpu-zen4.json", "peers-cpu-zen3.json"),
        "peers-cpu-dqn.json",
    ],
)
def test_the_page_of_peers_has_the_tables_of_its_records(name):
    record = json.loads((RESULTS / name).read_text())
    page = (RESULTS / "peers-cpu.md").read_text()
    assert "\n".join(report.table(record)) in page
    assert record["commit"] in page and record["date"] in page


def test_the_first_runs_of_the_readme_are_on_record():
    """Its first two commands, and where all seeds of both ended."""
    commands, end = re.search(
        r"## Train\n\n```\n(.*?)```.*?All\s+three\s+seeds\s+of\s+each\s+ended\s+at\s+(\d+)",
        README,
        re.DOTALL,
    ).groups()
    lines = {x["command"]: x for x in records.read(records.KEPT / "cartpole.jsonl")}
    found = [lines[command] for command in commands.splitlines()]
    returns = [f"{x:.0f}" for line in found for x in records.returns(line)]
    assert returns == [end] * 6


def test_pqn_beside_ppo_is_on_record():
    page = rows((ROOT / "docs" / "pqn.md").read_text())
    found = 0
    for group in ("pqn-breakout", "minatar-breakout"):
        lines = records.table(records.read(records.KEPT / f"{group}.jsonl"))
        for _, agent, steps, _, mean, spread, _, seeds, *_ in rows("\n".join(lines)):
            if agent in ("PQN", "PPO"):
                assert [agent, steps, f"{mean} ({spread})", seeds] in page
                found += 1
    assert found == 4


def test_dqn_on_minatar_is_on_record():
    found = [
        [game.replace("-", " ").title(), agent, mean, spread]
        for game in records.GAMES
        for _, agent, _, _, mean, spread, *_ in rows(
            "\n".join(records.table(records.read(records.KEPT / f"five-{game}.jsonl")))
        )
        if agent in ("DQN", "PQN", "PPO")
    ]
    table = [
        row for row in rows((ROOT / "docs" / "dqn.md").read_text()) if row in found
    ]
    assert sorted(table) == sorted(found) and len(found) == 15


@pytest.mark.parametrize("agent", ["dqn", "pqn"])
def test_scores_in_minatars_five_games_are_on_record(agent):
    page = " ".join((ROOT / "docs" / f"{agent}.md").read_text().split())
    found = records.five(records.kept(), records.KEPT)
    table = {name: cells for name, *cells in rows("\n".join(found))}
    for name in {agent.upper(), "PQN", "PPO"}:
        iqm, interval, *_ = table[name]
        assert f"{iqm} ({interval})" in page


def test_impala_on_pong_is_on_record():
    page = (ROOT / "docs" / "impala.md").read_text()
    (line,) = records.read(records.KEPT / "pong-impala.jsonl")
    result = f"{records.returns(line).mean():.1f}"
    assert f"**{result}** of 21" in page and f"| {result} after 3M |" in page
    assert shlex.split(line["command"]) == shlex.split(
        re.search(r"### Pong\n+```\n(.*?)```", page, re.DOTALL)[1].replace("\\\n", "")
    )


# of libraries that the tests do not install
LIBRARIES = "craftax:Craftax-Symbolic-v1", "brax:hopper"


@pytest.mark.parametrize("task", experiments.TASKS, ids=lambda task: task.command)
def test_an_experiment_names_what_exists(task):
    words = task.command.split()
    flags = dict(itertools.pairwise(words))
    if words[0] not in ("anakin", "sebulba"):
        assert importlib.util.find_spec(words[0]) and "--total-steps" in words
        return
    assert flags["--preset"] in AGENTS[flags.get("--agent", "impala")].PRESETS
    assert words[0] == "sebulba" or task.env in (*envs_jax.ENVIRONMENTS, *LIBRARIES)
    defaults = "cartpole", "cartpole-ten", "pendulum", "smoke"
    assert task.group in defaults or "--total-steps" in words


def test_the_readme_has_the_times_to_a_score_on_record():
    results = ROOT / "docs" / "results"
    kept = json.loads((results / "time-to-score.json").read_text())
    assert time_to_score.page(kept) == (results / "time-to-score.md").read_text()
    (_, *scores), _, *table = tables(section(README, "Speed"), 1 + len(kept))
    shown = {who: dict(zip(scores, cells, strict=True)) for who, *cells in table}
    for name, record in kept.items():
        for who, runs in record["runs"].items():
            package, _, which = who.partition(", ")
            cells = shown[package][time_to_score.TASKS[name].title].split(", ")
            assert f"{time_to_score.median(runs)}{which and f' ({which})'}" in cells


def test_a_median_of_times_counts_a_score_that_was_not_reached_as_the_slowest():
    reached = [{"seconds": x, "reached": True} for x in (7.0, 3.0, 5.0)]
    missed = {"seconds": 1.0, "reached": False}
    assert time_to_score.median(reached) == "5.0"
    assert time_to_score.median([*reached, missed]) == "7.0"
    assert time_to_score.median([*reached[:2], missed, missed]) == "-"


@pytest.mark.parametrize("task", time_to_score.TASKS.values(), ids=lambda x: x.title)
def test_a_score_names_what_exists(task):
    for command in task.ours.values():
        flags = dict(itertools.pairwise(command.split()))
        assert flags["--preset"] in AGENTS[flags.get("--agent", "impala")].PRESETS
    assert {*map(time_to_score.package_of, task.peers)} <= time_to_score.VENVS.keys()


def test_times_to_a_score_are_kept_after_each_seed(monkeypatch):
    monkeypatch.setattr(time_to_score, "ours", lambda task, command, seed: seed)
    records = time_to_score.measure("smoke", 2)
    assert [[*record["runs"]["podracer"]] for record in records] == [[0], [0, 1]]


def test_every_environment_has_an_experiment():
    envs = [task.env for task in experiments.TASKS if task.group == "built-in"]
    assert sorted(envs) == sorted(envs_jax.ENVIRONMENTS)


@pytest.mark.parametrize("together", [False, True])
def test_a_run_is_made_once_unless_its_command_changes(tmp_path, monkeypatch, together):
    made = []
    monkeypatch.setattr(learning, "call", lambda line: made.append(line[3:]))
    monkeypatch.setattr(learning, "commit", lambda: "abc")
    task = experiments.Task(
        "smoke", "PPO", "anakin train --env catch", together=together
    )
    config = learning.Config(only=("smoke",), seeds=2, out=tmp_path)
    for place in learning.folders(config, task):
        place.mkdir(parents=True)
    learning.run(task, config)
    assert len(made) == (1 if together else 2)
    assert ("--seeds" in made[0]) == together
    learning.run(task, config)
    assert len(made) == (1 if together else 2)
    learning.folders(config, task)[1].joinpath(records.DONE).unlink()
    learning.run(task, config)
    assert made[-1][made[-1].index("--seed") + 1] == "1"
    assert (
        "--seeds" not in made[-1] and f"{learning.folders(config, task)[1]}" in made[-1]
    )
    learning.run(task._replace(command=f"{task.command} --cores 1"), config)
    assert len(made) == (3 if together else 5)


@pytest.mark.parametrize("together", [False, True])
def test_a_killed_run_is_resumed_and_on_record(tmp_path, monkeypatch, together):
    """Its seconds are those of its parts, the first until its last row."""
    made, commits = [], ["abc", "abc", "def"]
    task = experiments.Task(
        "smoke", "PPO", "anakin train --env catch", together=together
    )
    config = learning.Config(only=("smoke",), seeds=1 + together, out=tmp_path)
    place, *others = learning.folders(config, task)

    def call(line):
        made.append(line)
        if len(made) < 3:
            (place / "metrics.jsonl").write_text("{}")
            raise KeyboardInterrupt

    def following(program):
        assert program == made[0][:-1] and made[0][-1] == "--overwrite"
        return ("anakin", "train", "--resume", str(place)), "holds a checkpoint"

    monkeypatch.setattr(learning, "call", call)
    monkeypatch.setattr(learning, "commit", lambda: commits[len(made)])
    monkeypatch.setattr(learning.restarts, "following", following)
    for x in (place, *others):
        x.mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            learning.run(task, config)
        note = json.loads(learning.begun(place).read_text())
        learning.write(learning.begun(place), note | {"started": note["started"] - 60})
    learning.run(task, config)
    assert made[1] == made[2] == ("anakin", "train", "--resume", str(place))
    done = json.loads((place / records.DONE).read_text())
    assert done["resumed"] == 2 and done["commit"] == "abc, def"
    assert 120 <= done["seconds"] < 150 and "started" not in done
    line = {"env": "catch", "agent": "PPO", "command": task.command, "runs": [done]}
    assert next(records.commands([line])).endswith("; killed and resumed 2 times")


def test_what_takes_too_long_is_asked_to_write_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "HOURS", 2 / 3600)
    text = "trap 'touch saved; exit' TERM; while :; do sleep 0.1; done"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"after 0\.0\d+ hours; start again to resume"):
        learning.call(["bash", "-c", text])
    assert Path("saved").exists()


def test_a_result_is_of_the_last_tenth_or_the_last_row_before_it():
    def row(steps, episodes, mean):
        return {"steps": steps, "episodes": episodes, "episode_return": mean}

    found = [row(50, 9, 100.0), row(91, 1, 1.0), row(100, 3, 5.0)]
    assert records.result(found) == 4.0
    assert records.result([*found, row(1_000, 0, 0.0)]) == 5.0
    assert math.isnan(records.result([row(1_000, 0, 0.0)]))


def test_a_record_of_another_machine_is_kept(tmp_path):
    task = experiments.Task("built-in", "PPO", "anakin train --env catch")
    run = {"return": 1.0, "steps": 10, "seconds": 2.0, "load": 0.0, "jax": "1"}
    run |= {"commit": "abc", "date": "2026-01-01", "machine": "one"}
    line = {"env": "catch", "agent": "PPO", "command": task.command, "target": None}
    path = tmp_path / "learning" / "built-in.jsonl"
    path.parent.mkdir()
    records.write([line | {"runs": [run]}], path)
    config = learning.Config(only=("built-in",), out=tmp_path)
    learning.report([task], config)
    assert records.read(path) == [line | {"runs": [run]}]
    assert "| catch | PPO | 10 | - | 1 |" in (tmp_path / "learning.md").read_text()
    learning.report([task._replace(command="anakin train --env cartpole")], config)
    assert not records.read(path)


def test_a_seed_without_finished_episodes_leaves_no_interval():
    line = records.read(records.KEPT / "cartpole.jsonl")[0]
    runs = [run | {"return": math.nan} for run in line["runs"][:1]] + line["runs"][1:]
    row = [*records.table([line | {"runs": runs}])][4]
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[5:8] == ["-", "", "-"]


def test_a_population_is_made_once_and_its_choice_evaluated(tmp_path, monkeypatch):
    """One member has failed; the episodes that count are those of the last steps."""
    made, folder = [], tmp_path / "smoke" / "random-search" / "seed-1"
    last = populations.rows(19, mean_return=3.0)  # of 20 intervals
    populations.write(
        folder,
        [*populations.rows(0, mean_return=9.0), *last],
        [populations.row(50, 0, mean_return=99.0)],
        [*populations.rows(0), *populations.rows(19, mean_return=2.0)],
        exploit=False,
        total_steps=2000,
    )
    for number, state in enumerate(("finished", "failed", "finished")):
        text = json.dumps({"state": state, "started": 0})
        (folder / f"member-{number}" / "state.json").write_text(text)
    evaluation = folder / "member-0" / "evaluation.jsonl"
    evaluation.write_text(json.dumps({"episode_return": 2.5}))
    small = population.TASKS["smoke"]._replace(total_steps=2000)
    monkeypatch.setitem(population.TASKS, "smoke", small)
    monkeypatch.setattr(learning, "commit", lambda: "abc")
    monkeypatch.setattr(
        population.subprocess, "run", lambda line, **_: made.append(line[2:])
    )
    config = population.Config(only=("smoke",), seeds=1, members=3, out=tmp_path)
    one = "smoke", population.CONTROL, 1, config
    assert not population.is_done(*one)
    population.run(*one)
    assert population.is_done(*one)
    assert not population.is_done(*one[:3], dataclasses.replace(config, members=4))
    trained, evaluated = made
    assert {"--pbt.no-exploit", "--overwrite"} < {*trained}
    assert trained[trained.index("--seed") + 1] == "3"
    assert evaluated[:3] == ["anakin", "evaluate", str(folder / "member-0")]
    found = json.loads((folder / records.DONE).read_text())
    assert found["returns"] == {"member-0": 3.0, "member-1": None, "member-2": 2.0}
    assert found["chosen"] == "member-0" and found["hyperparameters"]
    assert (population.of_all(found), population.of_chosen(found)) == (2.5, 2.5)
    (folder / "member-2" / "state.json").unlink()
    with pytest.raises(UserError, match="member-2: not trained to the end"):
        population.run(*one)
    assert not population.is_done(*one)


def test_the_page_of_populations_is_its_records():
    found = json.loads((RESULTS / "population.json").read_text())
    page = "\n".join(population.page(found))
    assert (RESULTS / "population.md").read_text() == page


def test_a_picture_of_learning_is_drawn_from_the_records():
    """Its means are those of the table, however the curves end."""

    def run(mean):
        return {"return": mean, "curve": [[1000, 0.0, 3], [2000, 5.0, 3]]}

    lines = [
        {"env": "catch", "agent": "PPO", "runs": [run(1.0), run(2.0)]},
        {"env": "catch", "agent": "IMPALA", "runs": [run(3.0), run(3.0)]},
    ]
    picture = records.picture(lines)
    names = [text.get_text() for text in picture.legends[0].get_texts()]
    assert names == ["PPO, 2 runs: 1.5", "IMPALA, 2 runs: 3"]
    assert picture.axes[0].lines[0].get_xdata()[-1] == 2000
    assert not records.picture([lines[0], lines[1] | {"env": "cartpole"}])
    assert not records.picture([lines[0] | {"runs": [{"return": 1.0}]}])


def test_the_five_games_are_together_by_the_mean_of_ppo(tmp_path):
    """An agent that lacks a game is left out."""

    def line(agent, *found):
        runs = [{"return": x} for x in found]
        return {"agent": agent, "runs": runs, "command": "anakin --total-steps 200_000"}

    groups = {
        f"five-{game}": [line("PPO", 2.0 * n, 4.0 * n), line("PQN", 6.0 * n, 6.0 * n)]
        for n, game in enumerate(experiments.GAMES, start=1)
    }
    groups["five-breakout"].append(line("DQN", 1.0, 1.0))
    found = records.scores(groups)
    assert [*found] == ["PPO", "PQN"]
    for game in zip(*found.values(), strict=True):
        np.testing.assert_allclose(game, [[2 / 3, 4 / 3], [2.0, 2.0]])
    text = "\n".join(records.five(groups, tmp_path))
    assert "| PPO | 1.00 | 0.67 to 1.33 | 1.00 | 2 |" in text
    assert "| PQN | 2.00 | 2.00 to 2.00 | 2.00 | 2 |" in text
    assert "after 200k steps" in text and "DQN" not in text
    apart = [np.full(3, 1.0), np.full(3, 3.0)]  # seeds differ by their games alone
    assert records.interval_of_iqm(apart) == (2.0, 2.0)
    records.draw_five(groups, tmp_path)
    assert (tmp_path / records.FIVE_PICTURE).exists()
    del groups["five-breakout"]
    assert not records.scores(groups) and not [*records.five(groups, tmp_path)]


def test_a_record_has_the_curve_of_each_seed(tmp_path):
    task = experiments.Task("smoke", "PPO", "anakin train --env catch")
    rows = [
        {"steps": 10 * (i + 1), "episodes": 2, "episode_return": i / 3}
        for i in range(records.POINTS * 2)
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text)
    (tmp_path / records.DONE).write_text("{}")
    config = {"versions": {}, "config": {"train": {}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (run,) = records.record(task, [tmp_path])["runs"]
    assert len(run["curve"]) == records.POINTS
    assert run["curve"][:2] == [[20, 0.1667, 4], [40, 0.8333, 4]]
