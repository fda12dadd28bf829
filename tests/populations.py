"""Folders of populations, written by hand: what their members would have recorded."""

import json
from pathlib import Path

from podracer.runs import lineage

STEPS = 100  # of an interval, with two reports


def row(steps, interval, parent=-1, rate=0.1, mean_return=0.0, episodes=2, **others):
    """A member's report."""
    of_member = {
        lineage.INTERVAL: interval,
        lineage.PARENT: parent,
        "population/learning_rate": rate,
    }
    measured = {"episode_return": mean_return, "episodes": episodes}
    return {"steps": steps, "updates": steps} | measured | of_member | others


def rows(interval, *arguments, **options):
    """Both reports of an interval."""
    start = interval * STEPS
    return [
        row(start + STEPS // 2 * i, interval, *arguments, **options) for i in (1, 2)
    ]


def config(members, exploit=True, is_member=False, **train):
    """What `together.json` has, or the `config.json` of a member."""
    pbt = {
        "interval": STEPS,
        "exploit": exploit,
        "fields": ["learning-rate=1e-4..1e-1"],
    }
    train = {"agent": {"learning_rate": 0.1}, "total_steps": 300, "seed": 0} | train
    contents = {"agent": "impala", "env": "catch", "train": train}
    if not is_member:
        contents["train"] = {"population": members, "pbt": pbt} | train
    elif exploit:
        contents["population"] = members
    return json.dumps({"command": "", "versions": {}, "config": contents})


def write(folder: Path, *members, exploit=True, **train):
    """A population's folder, of the rows of each member."""
    for number, own in enumerate(members):
        place = folder / f"member-{number}"
        place.mkdir(parents=True)
        rate = {"learning_rate": 10.0 ** -(number + 1)}
        own_train = train | {"agent": rate, "seed": number}
        text = config(len(members), exploit, True, **own_train)
        (place / "config.json").write_text(text)
        lines = "".join(f"{json.dumps(x)}\n" for x in own)
        (place / "metrics.jsonl").write_text(lines)
    (folder / "together.json").write_text(config(len(members), exploit, **train))
    return folder
