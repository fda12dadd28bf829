"""The README's code runs, its links work, and CONTRIBUTING's map is complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from podracer.agents import AGENTS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.shows(ROOT / "README.md")
def test_the_script_runs():
    codes = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (code,) = [code for code in codes if "anakin.train" in code]
    shorter = code.replace("1_000_000", "4_000")
    assert shorter != code
    done = subprocess.run(
        [sys.executable, "-c", shorter],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 4


def test_links_point_to_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_table_of_agents_has_every_preset():
    row = re.compile(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", re.MULTILINE)
    listed = dict(row.findall(README))
    for agent, module in AGENTS.items():
        if "..." not in listed[agent]:
            presets = [x for x in module.PRESETS if x != "none"]  # the defaults
            assert re.findall(r"`([\w-]+)`", listed[agent]) == presets, agent


def test_the_map_names_every_file():
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    for package in ("podracer", "anakin", "sebulba", "envs_jax"):
        for path in (ROOT / package).rglob("*.py"):
            family = package == "envs_jax" and len(path.relative_to(ROOT).parts) > 2
            name = f"{path.parent.name}/" if family else path.name
            assert name.startswith("__") or f"`{name}`" in contributing, path
