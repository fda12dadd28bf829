"""The README's code runs, and the files that it names are there."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_notebook_lines_run():
    codes = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (code,) = [code for code in codes if "anakin.train" in code]
    shorter = code.replace("1_000_000", "4_000")
    assert shorter != code
    done = subprocess.run(
        [sys.executable, "-c", shorter],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 4


def test_links_lead_to_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_tree_names_every_room():
    for package in ("podracer", "anakin", "sebulba", "envs_jax"):
        for path in (ROOT / package).glob("*.py"):
            if not path.name.startswith("__"):
                assert path.name in README or path.stem in README, path
