"""Programs of clouds and clusters that only write down what they are asked."""

import os
import time
from collections.abc import Callable
from pathlib import Path

KILL = 240  # seconds that processes of ours may live: only a hang takes as long

# FAIL and SLOW are shell patterns of arguments: what is slow waits for the file `go`.
# states.txt holds what `describe` will say.
SCRIPT = """#!/bin/bash
cd {folder}
echo "$(basename $0) $*" >> calls.txt
case "$*" in $SLOW) touch slow; for i in {{1..600}}; do [ -e go ] || sleep 0.05; done; touch ended ;; esac
case "$*" in *describe*) head -n 1 states.txt; sed -i 1d states.txt ;; esac
case "$(basename $0)" in sbatch) cat > script.txt ;; esac
case "$*" in $FAIL) exit ${{CODE:-1}} ;; esac
exit 0
"""


def install(folder: Path, *names: str) -> dict[str, str]:
    """Puts fakes of that name into `folder`/bin; returns the environment they are in."""
    programs = folder / "bin"
    programs.mkdir()
    (folder / "states.txt").write_text("ACTIVE\n")
    for name in names:
        (programs / name).write_text(SCRIPT.format(folder=folder))
        (programs / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}:/usr/bin:/bin",
        "FAIL": "none",
        "SLOW": "none",
    }


def calls(folder: Path) -> list[str]:
    """What they were asked, in its order."""
    path = folder / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def until(condition: Callable[[], bool]) -> None:
    """Waits for it, with a time limit."""
    deadline = time.monotonic() + KILL
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
