"""The results of a contest as a record, as Markdown and as a picture."""

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from benchmarks.learning import commit
from benchmarks.peers import contest, environments
from benchmarks.peers.work import Replayed
from podracer import parallel
from podracer.metrics import human
from podracer.runs import plot

SLOWER = 0.8  # of the recorded speed: a regression, if the machine was quiet


def begin(command: str, peers: list[str]) -> dict:
    """A record without results."""
    names = "jax", "jaxlib", "numpy", "envpool"
    return {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "cpu": cpu(),
        "cpus": parallel.processors(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
        "peers": {peer: environments.PINS[peer] for peer in peers},
        "floor": {},  # by kind of work
        "results": [],
        "left_out": {},
    }


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def add(record: dict, turn: contest.Turn, load: float, result: dict) -> None:
    """Puts a measurement into the record."""
    key = {"work": turn.work.name, "entrant": turn.entrant.name, "cores": turn.cores}
    rows = [row for row in record["results"] if key.items() <= row.items()]
    if not rows:
        lists = {"steps_per_second": [], "loads": [], "failures": []}
        rows = [key | {"steps": turn.work.steps} | lists]
        if isinstance(turn.work, Replayed):
            rows[0]["updates_per_step"] = turn.work.updates_per_step
        record["results"] += rows
    if "failure" in result:
        rows[0]["failures"].append(result["failure"])
    else:
        rows[0]["steps_per_second"].append(result["steps_per_second"])
        rows[0]["loads"].append(load)


def median(row: dict) -> float:
    """Steps/s; NaN without a result."""
    return statistics.median(row["steps_per_second"] or [math.nan])


def by_work(record: dict) -> dict[str, list[dict]]:
    """The rows of each work that have a result."""
    found = {}
    for row in record["results"]:
        if row["steps_per_second"]:
            found.setdefault(row["work"], []).append(row)
    return found


def over_floor(record: dict, row: dict) -> float:
    """Speed over that of the arithmetic of its agent; NaN if not measured."""
    kind = row["work"].partition(":")[0]
    speeds = record["floor"].get(kind, [math.nan])
    return median(row) / statistics.median(speeds)


def fastest_peer(rows: list[dict]) -> float:
    """Steps/s of the fastest entrant that is not ours; NaN if there is none."""
    peers = [median(row) for row in rows if not is_ours(row)]
    return max(peers, default=math.nan)


def is_ours(row: dict) -> bool:
    return row["entrant"].startswith(contest.OURS)


def machine(record: dict) -> str:
    """A sentence of the record's circumstances."""
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    loads = [load for row in record["results"] for load in row["loads"]]
    loads = [record["load"], *loads]
    accelerator = f"{record['accelerator']}, " if "accelerator" in record else ""
    return (
        f"{record['date']}, commit {record['commit']}, {accelerator}{record['cpus']} CPUs "
        f"({record['cpu']}), Python {record['python']}, {versions}; load {loads[0]:.1f} "
        f"before the start and {min(loads):.1f} to {max(loads):.1f} before each "
        "measurement, which counts the one before it."
    )


def table(record: dict) -> Iterator[str]:
    """Lines of Markdown: a row for each work and entrant."""
    names = "work", "entrant", "cores", "steps/s", "lowest", "highest"
    yield f"| {' | '.join(names)} | / fastest peer | / floor |"
    yield "|---" * (len(names) + 2) + "|"
    for work, rows in by_work(record).items():
        peer = fastest_peer(rows)
        for row in sorted(rows, key=median, reverse=True):
            speeds = row["steps_per_second"]
            spread = map(human, (median(row), min(speeds), max(speeds)))
            ratio = "" if math.isnan(peer) else f"{median(row) / peer:.2f}"
            cells = work, row["entrant"], str(row["cores"]), *spread, ratio
            yield f"| {' | '.join(cells)} | {over_floor(record, row):.3g} |"
    yield ""
    floors = ", ".join(
        f"{name} {human(statistics.median(found))}"
        for name, found in record["floor"].items()
    )
    yield f"Floor, steps/s: {floors}."
    for row in record["results"]:
        if row["steps_per_second"] and "updates_per_step" in row:
            updates = median(row) * row["updates_per_step"]
            name = f"{row['work']}, {row['entrant']} on {row['cores']}"
            yield f"Updates/s: {name}: {updates:.3g}"
    for row in record["results"]:
        for failure in row["failures"]:
            last = failure.strip().splitlines()[-1]
            yield f"Failed: {row['entrant']} on {row['work']}: {last}"
    for peer, reason in record["left_out"].items():
        yield f"Left out: {peer}: {reason}"


def against(record: dict, before: dict) -> Iterator[str]:
    """Lines of Markdown: our speeds over the floor, now and in an earlier record."""
    yield f"| work | entrant | / floor | at {before['commit']} | change |"
    yield "|---|---|---|---|---|"
    if record["cpus"] != before["cpus"]:
        yield f"The earlier record has {before['cpus']} CPUs: the ratios do not compare."
        return
    ours = [row for row in record["results"] if is_ours(row)]
    for row in ours:
        key = {name: row[name] for name in ("work", "entrant", "cores")}
        for old in before["results"]:
            if key.items() <= old.items() and old["steps_per_second"]:
                now, then = over_floor(record, row), over_floor(before, old)
                note = " **slower**" if now < SLOWER * then else ""
                cells = row["work"], row["entrant"], f"{now:.3g}", f"{then:.3g}"
                yield f"| {' | '.join(cells)} | {now / then:.2f}{note} |"


def picture(record: dict) -> plot.Picture:
    """Bars: steps/s of each entrant, its best number of cores, and the range of rounds."""
    works = by_work(record)
    columns = min(2, len(works))
    rows = -(-len(works) // columns)
    drawn = plot.Picture(figsize=(9, 0.6 + 1.9 * rows), dpi=150, layout="constrained")
    for number, (work, found) in enumerate(works.items(), 1):
        axes = drawn.add_subplot(rows, columns, number)
        best = {}
        for row in sorted(found, key=median):
            best[row["entrant"]] = row  # the fastest is the last
        for row in sorted(best.values(), key=median):
            speeds, color = row["steps_per_second"], plot.COLORS[not is_ours(row)]
            axes.barh(row["entrant"], median(row), color=color, height=0.7)
            axes.plot([min(speeds), max(speeds)], [row["entrant"]] * 2, color="#33333a")
            axes.annotate(
                f" {human(median(row))}",
                (max(speeds), row["entrant"]),
                va="center",
                fontsize="small",
            )
        axes.set_title(work, fontsize="medium")
        axes.set_xlim(0, 1.25 * axes.get_xlim()[1])
        axes.xaxis.set_major_formatter(lambda number, _: human(number))
        axes.tick_params(labelsize="small")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
    drawn.supxlabel("environment steps/s", fontsize="medium")
    return drawn


def command() -> str:
    """This process's, as a user types it."""
    return " ".join(["python -m benchmarks.peers", *sys.argv[1:]])
