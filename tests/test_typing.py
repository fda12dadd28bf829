"""A user's type checker: it knows the packages' annotations and finds broken contracts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# (line of typed_contract.py, what a user got wrong, what mypy says of it)
MISTAKES = [
    (
        "lost_episodes(self) -> int:",
        "lost(self) -> int:",
        '"HostWalk" is missing following "HostEnvironment" protocol member',
    ),
    (
        "def action_spec(self) -> dm_env.specs.DiscreteArray:",
        "def actions(self) -> dm_env.specs.DiscreteArray:",
        '"Walk" is missing following "Environment" protocol member',
    ),
    ("return state, {", "return {", 'expected "tuple[LearnerState, dict[str, Array]]"'),
    ("        greedy_actor_step,\n", "", "greedy_actor_step"),
    (
        "return Network(init, initial_memory, step,",
        "return Network(initial_memory, init, step,",
        'Argument 1 to "Network" has incompatible type',
    ),
]


def check(path, tmp_path):
    """mypy's findings in one file of a user, who has these packages installed.

    It shares the cache of `make lint`: to read JAX's annotations takes half a minute.
    """
    shared = {"MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", path],
        cwd=tmp_path,
        env=os.environ | shared,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_the_packages_say_that_they_are_typed():
    for package in ("podracer", "anakin", "sebulba", "envs_jax"):
        assert (ROOT / package / "py.typed").is_file()


@pytest.mark.timeout(600)  # without a cache
def test_a_type_checker_finds_what_breaks_the_contract(tmp_path):
    pytest.importorskip("mypy")
    text = (ROOT / "tests" / "typed_contract.py").read_text()
    (tmp_path / "right.py").write_text(text)
    assert "Success" in check(tmp_path / "right.py", tmp_path)
    for right, wrong, _ in MISTAKES:
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    (tmp_path / "wrong.py").write_text(text)
    found = check(tmp_path / "wrong.py", tmp_path)
    for _, wrong, message in MISTAKES:
        assert message in found, (wrong, found)
