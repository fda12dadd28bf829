"""What the test suite costs: CPU seconds of each file, by kind, and programs compiled again.

    python -m benchmarks.suite [--tests tests/podracer ...] [--report docs/results/suite.md]

It runs `make test`'s tests with itself as a plugin of pytest, which listens to the times that
JAX reports and to the keys of its compilation cache. Tracing, lowering and compiling are wall
seconds, each without what it contains of the others; CPU seconds count the processes that a
test starts and waits for.
"""

import collections
import dataclasses
import datetime
import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest  # and not jax, before tests/conftest.py has set its variables

ROOT = Path(__file__).parents[1]
FOLDER = "PODRACER_SUITE"  # names the folder into which each worker writes its rows
KINDS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
PYTEST = [
    "-q",
    "-p",
    "benchmarks.suite",
    "-m",
    "not slow",
    "--dist=loadfile",
]  # as in the Makefile
OF_CACHE = re.compile(r"(?:MISS|hit) for '.*?' with key '(.*?)'")
COLUMNS = ("cpu", "children", *KINDS.values(), "wall")
HEAD = """# The test suite

`python -m benchmarks.suite --report docs/results/suite.md` runs `make test` and writes this
page. CPU seconds are those of the test's process and of the processes that it started;
tracing, lowering and compiling are wall seconds of three workers that share the machine.

"""

seconds: collections.Counter[str] = collections.Counter()
compiled: list[tuple[str, float]] = []  # key of the compilation cache, seconds
keys: list[str] = []
spans: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)


def listen(event: str, duration: float, **_: Any) -> None:
    """Add a time that JAX reports, without the reported times that lie inside it."""
    if event not in KINDS:
        return
    start = time.time() - duration
    thread = spans[threading.get_ident()]
    inside = 0.0
    while thread and thread[-1][0] >= start - 1e-5:
        inside += thread.pop()[1]
    thread.append((start, duration))
    seconds[KINDS[event]] += max(duration - inside, 0.0)
    if KINDS[event] == "compiling" and keys:
        compiled.append((keys[-1], duration))


class Keys(logging.Handler):
    """Collects the keys of programs out of what JAX's compilation cache logs."""

    def emit(self, record: logging.LogRecord) -> None:
        keys.extend(OF_CACHE.findall(record.getMessage()))


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("numprocesses", None) or FOLDER not in os.environ:
        return  # it starts workers, which listen
    import jax

    jax.monitoring.register_event_duration_secs_listener(listen)
    logger = logging.getLogger("jax._src.compiler")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(Keys())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    compiled.clear()
    before = used()
    result = yield
    row = {name: now - before[name] for name, now in used().items()}
    row |= {"test": item.nodeid, "compiled": list(compiled)}
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with (Path(os.environ[FOLDER]) / f"{worker}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return result


def used() -> dict[str, float]:
    """Seconds that this process has used, by kind."""
    own, children = map(
        resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {
        "cpu": own.ru_utime + own.ru_stime,
        "children": children.ru_utime + children.ru_stime,
        **{kind: seconds[kind] for kind in KINDS.values()},
        "wall": time.time(),
    }


@dataclasses.dataclass(frozen=True)
class Config:
    """Which tests to measure."""

    tests: tuple[str, ...] = ()
    """files or folders; none: those of `make test`"""
    workers: int = 3
    report: Path | None = None
    """page to write"""


def page(rows: list[dict[str, Any]]) -> str:
    """A table of the files that cost most, and of the programs compiled more than once."""
    files: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    programs: dict[str, list[float]] = collections.defaultdict(list)
    for row in rows:
        for name in ("all", row["test"].split("::")[0].removeprefix("tests/")):
            files[name].update(
                {column: row[column] for column in COLUMNS} | {"tests": 1}
            )
        for key, duration in row["compiled"]:
            programs[key].append(duration)
    costs = sorted(
        files.items(), key=lambda file: -file[1]["cpu"] - file[1]["children"]
    )
    again = [durations for durations in programs.values() if len(durations) > 1]
    wasted = sum(sum(durations) - max(durations) for durations in again)
    total = sum(map(sum, programs.values()))
    return (
        HEAD
        + f"{datetime.date.today()}, {os.cpu_count()} CPUs.\n\n"
        + f"{len(programs)} programs are compiled {sum(map(len, programs.values()))} times, in "
        + f"{total:.0f} s; {len(again)} of them more than once, at {wasted:.0f} s.\n\n"
        + f"| file | tests | {' | '.join(COLUMNS)} |\n|---|{'---:|' * (1 + len(COLUMNS))}\n"
        + "".join(
            f"| {name} | {cost['tests']} | "
            + " | ".join(f"{cost[column]:.1f}" for column in COLUMNS)
            + " |\n"
            for name, cost in costs[:40]
        )
    )


def main(config: Config) -> int:
    """Run the tests and report what they cost; returns pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {FOLDER: folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as in the Makefile
        code = subprocess.call(
            [sys.executable, "-m", "pytest", *PYTEST, "--no-loadscope-reorder"]
            + [f"--numprocesses={config.workers}", *config.tests],
            env=environment,
            cwd=ROOT,
        )
        lines = [line for file in Path(folder).iterdir() for line in file.open()]
    text = page(list(map(json.loads, lines)))
    if config.report:
        config.report.write_text(text)
    else:
        print(text)
    return code


if __name__ == "__main__":
    import tyro

    sys.exit(main(tyro.cli(Config)))
