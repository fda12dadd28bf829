"""What a peer leaves for `benchmarks.learning`: the files of a run of ours, and its flags."""

import argparse
import json
import time
from pathlib import Path
from typing import Any


def flags(description: str, env: str) -> argparse.ArgumentParser:
    """Those that `benchmarks.learning` gives. `env` is the default."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--env", default=env)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--total-steps", type=int, default=1_000_000)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--overwrite", action="store_true", help="it is, in any case")
    parser.add_argument("--quiet", action="store_true", help="print no rows")
    return parser


class Run:
    """A folder with config.json and metrics.jsonl."""

    def __init__(
        self,
        options: argparse.Namespace,
        versions: dict[str, str],
        settings: dict[str, Any],
    ):
        options.run.mkdir(parents=True, exist_ok=True)
        config = {"versions": versions, "config": {"train": settings}}
        (options.run / "config.json").write_text(json.dumps(config, indent=2))
        self._metrics = options.run / "metrics.jsonl"
        self._metrics.write_text("")
        self._quiet, self._started = options.quiet, time.perf_counter()

    def write(self, steps: int, episode_return: float, episodes: int) -> None:
        """A row: the steps so far, and the mean return of the episodes since the last row."""
        row = {
            "steps": steps,
            "episode_return": episode_return,
            "episodes": episodes,
            "seconds": round(time.perf_counter() - self._started, 2),
        }
        with open(self._metrics, "a") as file:
            file.write(json.dumps(row) + "\n")
        if not self._quiet:
            print(row, flush=True)
