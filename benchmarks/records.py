"""What `benchmarks.learning` has measured, as text: docs/results/learning/GROUP.jsonl.

A line is a task: its command and configuration, and of each seed the return, seconds, commit,
date, machine and curve. All tables are made from these records, never typed; so are the pictures
of a group.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from scipy import stats

from benchmarks.experiments import GAMES, PUBLISHED, Task
from podracer import metrics
from podracer.files import atomic
from podracer.metrics import human
from podracer.runs import plot, run_folder
from podracer.runs.evaluation import interval

KEPT = Path(__file__).parents[1] / "docs" / "results" / "learning"
DONE = "done.json"  # in a run's folder: how it was made
FIVE_PICTURE = "minatar-five.png"
MOST_SCORE = 3  # drawn there
POINTS = 100  # of a curve: (steps, mean return, episodes)
LIBRARIES = "jax", "stable-baselines3"  # whose versions are on record

HEAD = """# What agents learn

`python -m benchmarks.learning --only GROUP... --report docs/results` trains the groups of
benchmarks/experiments.py and writes this page. The records behind it, with every
configuration, are in `docs/results/learning/`. *Mean* is the mean return, with the exploring
policy, of the episodes that finished in the last tenth of a run; if none did, of those in the last
report that has any. *Seconds* is the time of a whole command, for all seeds if one program trains
them together (built-in). *Load* is the load average when the command started; seconds are meaningful
only if it is near 0. A run that was stopped or killed is resumed from its checkpoint when the
benchmark starts again; its command's line says so.

At a glance: each picture is a group and leads to its table. A dot is a seed, a line their mean; what
is published elsewhere is dashed, and the group's target dotted. The environments of `built-in` each
have a scale of their own: see [Built-in](../built-in.md).
"""
COLUMNS = ("environment", "agent", "steps", "target", "mean", "95 % interval", "IQM")
COLUMNS += ("seeds", "seconds", "load", "commit")


def result(rows: Sequence[dict[str, Any]]) -> float:
    """The mean return of episodes that finished in the last tenth of a `metrics.jsonl`.

    If none did, as where episodes are long, of those in the last row that has any; NaN if no
    episode finished.
    """
    rows, steps = [row for row in rows if row["episodes"]], rows[-1]["steps"]
    last = [row for row in rows if row["steps"] > 0.9 * steps] or rows[-1:]
    total = sum(row["episodes"] * row["episode_return"] for row in last)
    return total / sum(row["episodes"] for row in last) if last else math.nan


def record(task: Task, folders: Sequence[Path]) -> dict[str, Any]:
    """The line of a task whose seeds, from 0, have been trained into these folders."""
    runs, config = [], {}
    for seed, folder in enumerate(folders):
        rows = [*metrics.read(folder / run_folder.METRICS)]
        made = json.loads((folder / DONE).read_text())
        written = json.loads((folder / run_folder.CONFIG).read_text())
        made |= {"seed": seed, "return": result(rows), "steps": int(rows[-1]["steps"])}
        made |= {
            x: written["versions"][x] for x in LIBRARIES if x in written["versions"]
        }
        curve = plot.to_points(rows, "steps", "episode_return")
        made["curve"] = [
            [int(steps), float(f"{mean:.4g}"), int(episodes)]
            for steps, mean, episodes in (
                plot.thin(curve, POINTS) if len(curve) else ()
            )
        ]
        runs.append({key: made[key] for key in made.keys() - {"command"}})
        config = config or written["config"]["train"]
    for name in "keep", "seed":  # all that differs between the seeds
        config.pop(name, None)
    return {
        "env": task.env,
        "agent": task.agent,
        "command": task.command,
        "target": None if math.isnan(task.target) else task.target,
        "runs": [dict(sorted(run.items())) for run in runs],
        "config": config,
    }


def write(records: Sequence[dict[str, Any]], path: Path) -> None:
    """One line each."""
    with atomic(path) as temporary:
        temporary.write_text("".join(f"{json.dumps(line)}\n" for line in records))


def read(path: Path) -> list[dict[str, Any]]:
    """The tasks of a group; none if it has not been measured."""
    return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []


def returns(line: dict[str, Any]) -> np.ndarray:
    """The return of each seed."""
    return np.array([run["return"] for run in line["runs"]])


def seconds(line: dict[str, Any]) -> float:
    """The median of a run."""
    return float(np.median([run["seconds"] for run in line["runs"]]))


def kept(folder: Path = KEPT) -> dict[str, list[dict[str, Any]]]:
    """The tasks of each group that has been measured."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.jsonl"))}


def page(folder: Path = KEPT) -> str:
    """docs/results/learning.md: all groups at a glance; of each its table, picture and commands."""
    groups = kept(folder)
    parts = [HEAD, *glance(groups, folder), *five(groups, folder)]
    for name, lines in groups.items():
        parts += [f"## {name}\n", "\n".join(table(lines)) + "\n"]
        if (folder / f"{name}.png").exists():
            parts.append(f"![returns of {name} by steps]({folder.name}/{name}.png)\n")
        parts.append("\n".join(commands(lines)) + "\n")
    return "\n".join(parts)


def glance(groups: dict[str, list[dict[str, Any]]], folder: Path) -> Iterator[str]:
    """The small pictures of the groups that have one, and where published figures are from."""
    small = [name for name in groups if (folder / small_name(name)).exists()]
    for name in small:
        text = "; ".join(summary(name, groups[name]))
        yield f"[![{name}: {text}]({folder.name}/{small_name(name)})](#{name})"
    published = itertools.chain(*(PUBLISHED.get(name, ()) for name in small))
    lines = [
        f"- {x.who}, {x.env}: {x.mean_return} after {human(x.steps)} steps ({x.source})"
        for x in dict.fromkeys(published)
    ]
    yield "\n".join(["\nPublished elsewhere:\n"] * bool(lines) + lines + [""])


def scores(groups: dict[str, list[dict[str, Any]]]) -> dict[str, list[np.ndarray]]:
    """Of each agent the returns of all seeds in each of MinAtar's five games, by PPO's mean.

    Of the agents that are on record in all of them; none without PPO.
    """
    games = [
        {line["agent"]: returns(line) for line in groups.get(f"five-{game}", ())}
        for game in GAMES
    ]
    agents = [x for x in games[0] if all(x in game for game in games)]
    if "PPO" not in agents:
        return {}
    return {x: [game[x] / game["PPO"].mean() for game in games] for x in agents}


def five(groups: dict[str, list[dict[str, Any]]], folder: Path) -> Iterator[str]:
    """A section about MinAtar's five games together, if they are on record."""
    if not (found := scores(groups)):
        return
    command = groups[f"five-{GAMES[0]}"][0]["command"]
    steps = human(int(re.search(r"--total-steps (\S+)", command)[1]))
    yield f"""
### MinAtar's five games

The agents that are on record in all of them, with their presets, after {steps} steps (groups
`five-...`). A score is a seed's return divided by the mean return of PPO in that game; the
picture ends at {MOST_SCORE}. The interval is a bootstrap over the seeds of each game (Agarwal et al.
2021, [arXiv:2108.13264](https://arxiv.org/abs/2108.13264)).

| agent | IQM of the scores | 95 % interval | mean | seeds of each game |
|---|---|---|---|---|"""
    for agent, games in found.items():
        low, high = interval_of_iqm(games)
        everything = np.concatenate(games)
        cells = agent, f"{plot.iqm(everything):.2f}", f"{low:.2f} to {high:.2f}"
        yield f"| {' | '.join(cells)} | {everything.mean():.2f} | {len(games[0])} |"
    yield f"\n![share of seeds above a score]({folder.name}/{FIVE_PICTURE})\n"


def interval_of_iqm(games: Sequence[np.ndarray]) -> tuple[float, float]:
    """Ends of the 95 % interval of the interquartile mean over the seeds of all games.

    A percentile bootstrap stratified by game (Agarwal et al. 2021, section 4.1).
    """
    result = stats.bootstrap(
        tuple(games),
        lambda *x, axis: plot.iqm(np.concatenate(x, axis), axis),
        method="percentile",
        rng=np.random.default_rng(0),  # equal records give equal intervals
    )
    return result.confidence_interval


def draw_five(groups: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Writes the performance profiles of `scores`, if there are any."""
    if found := scores(groups):
        ends = {
            agent: [np.array([[1.0, score, 1.0]]) for score in np.concatenate(games)]
            for agent, games in found.items()
        }
        picture = plot.profiles(ends)
        text = "return, divided by the mean return of PPO"
        picture.axes[0].set(xlabel=text, xlim=(0, MOST_SCORE))
        plot.save(picture, folder / FIVE_PICTURE)


def small_name(group: str) -> str:
    """The file's name."""
    return f"{group}-small.png"


def summary(group: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """What the small picture says: the mean of each task, and what it is compared with."""
    means = [f"{line['agent']}: {human(returns(line).mean())}" for line in records]
    others = [f"{who}: {human(value)}" for who, value, _ in marks(group, records)]
    return means + others


def marks(
    group: str, records: Sequence[dict[str, Any]]
) -> list[tuple[str, float, str]]:
    """(name, return, style) of each line of comparison: what is published, and the targets."""
    published = [(x.who, x.mean_return, "--") for x in PUBLISHED.get(group, ())]
    targets = dict.fromkeys(x["target"] for x in records if x["target"] is not None)
    return published + [("target", target, ":") for target in targets]


def draw_small(group: str, records: Sequence[dict[str, Any]], folder: Path) -> None:
    """Writes the group's small picture, which also keeps its text; none if two tasks have one name.

    Its words can be read where two pictures are as wide as a phone.
    """
    if not records or len({line["agent"] for line in records}) < len(records):
        return
    texts, compared = summary(group, records), marks(group, records)
    picture = plot.Picture(
        figsize=(2.5, 0.6 + 0.3 * len(texts)), dpi=160, layout="constrained"
    )
    axes = picture.subplots()
    axes.set_title(group, fontsize=9, fontweight="bold")
    axes.set(ylim=(len(texts) - 0.3, -0.7), yticks=[])
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    for row, text in enumerate(texts):
        axes.text(
            *(0.0, row - 0.2, text),
            fontsize=8,
            bbox=ground,
            transform=axes.get_yaxis_transform(),
        )
    for row, (line, color) in enumerate(zip(records, itertools.cycle(plot.COLORS))):
        seeds = returns(line)
        axes.plot(seeds, [row + 0.2] * len(seeds), "o", ms=4, alpha=0.5, color=color)
        axes.plot([seeds.mean()] * 2, [row, row + 0.4], color=color, lw=2)
    for row, (_, value, style) in enumerate(compared, start=len(records)):
        axes.plot([value] * 2, [-0.7, row + 0.4], style, color="0.4", lw=1, zorder=1)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(labelsize=8)
    axes.margins(x=0.1)
    plot.dress(axes)
    axes.spines["left"].set_visible(False)
    with atomic(folder / small_name(group)) as path:
        kept = {"Description": "; ".join(texts)}
        picture.savefig(path, format="png", metadata=kept)


def picture(records: Sequence[dict[str, Any]]) -> plot.Picture | None:
    """The curves of a group, with the means of its table.

    None where the tasks have scales of their own, or a run was recorded before curves were.
    """
    runs = [run for line in records for run in line["runs"]]
    if len({line["env"] for line in records}) > 1 or any(
        "curve" not in run for run in runs
    ):
        return None
    return plot.compare(
        {
            line["agent"]: [np.array(run["curve"], float) for run in line["runs"]]
            for line in records
        },
        ends={line["agent"]: float(returns(line).mean()) for line in records},
    )


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: versions, and a row for each task."""
    runs = [run for line in records for run in line["runs"]]
    made = {
        (run["date"], run["machine"], *(f"{x} {run[x]}" for x in LIBRARIES if x in run))
        for run in runs
    }
    yield "; ".join(", ".join(one) for one in sorted(made)) + ":"
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for line in records:
        found, runs = returns(line), line["runs"]
        spread = len(found) > 1 and np.isfinite(found).all()
        low, high = interval(found[:, None]) if spread else ([], [])
        target = math.nan if line["target"] is None else line["target"]
        cells = [
            line["env"],
            line["agent"],
            human(runs[0]["steps"]),
            human(target),
            human(found.mean()),
            *(f"{human(x)} to {human(y)}" for x, y in zip(low, high, strict=True)),
            *([""] * (not spread)),
            human(plot.iqm(found)),
            ", ".join(map(human, found)),
            human(seconds(line)),
            human(max(run["load"] for run in runs)),
            ", ".join(sorted({run["commit"] for run in runs})),
        ]
        yield f"| {' | '.join(cells)} |"


def commands(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: the command of each task."""
    for line in records:
        text = f"- {line['env']}, {line['agent']}: `{line['command']}`"
        times = sum(run.get("resumed", 0) for run in line["runs"])
        yield f"{text}; killed and resumed {times} times" if times else text
