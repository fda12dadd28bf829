"""The house: who imports whom, who names a mesh, which words are used, how files begin."""

import ast
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.core

ROOT = pathlib.Path(__file__).parents[1]

MAY_IMPORT = {
    "podracer": {"podracer"},
    "envs_jax": {"envs_jax"},
    "anakin": {"anakin", "podracer", "envs_jax"},
    "sebulba": {"sebulba", "podracer"},
}
OURS = {*MAY_IMPORT, "benchmarks", "tests"}
ADAPTER = "sebulba/host_environments/envs_jax.py"  # may import envs_jax as well

PARALLEL = "podracer/parallel.py"
HOSTS = "podracer/hosts.py"
OF_PARALLEL = re.compile(
    r"jax\.(distributed|sharding)|Mesh|PartitionSpec|\w+Sharding|shard_map|pmap"
    r"|axis_(index|size)|p(mean|sum|max|min|permute|sum_scatter)|all_(gather|to_all)"
)

WORDS = {
    "critic": "value",
    "gamma": "discount_factor (the agent's) or discount (the environment's)",
    "obs": "observation",
    "replica": "core",
    "rew": "reward",
    "rng": "key",
    "rollout": "unroll (verb) or trajectory (its data)",
    "select_action": "actor_step",
    "train_step": "learner_step",
    "trainer": "learner",
    "worker": "actor, learner, core or host",
}

LONGEST = 300


def imports(path: str, source: str) -> Iterator[str]:
    """The picture: both architectures stand on podracer, Anakin on envs_jax too."""
    package = path.split("/")[0]
    allowed = MAY_IMPORT[package] | ({"envs_jax"} if path == ADAPTER else set())
    for node in ast.walk(ast.parse(source)):
        for name in imported(node):
            if name.split(".")[0] in OURS - allowed:
                yield (
                    f"{path}:{node.lineno} imports {name}, but {package} stands on "
                    f"{' and '.join(sorted(allowed))} alone: move what is shared into "
                    "podracer, or take it as an argument"
                )


def mesh(path: str, source: str) -> Iterator[str]:
    """Meshes, axes and shardings are the business of one file, other processes of
    another."""
    for node in ast.walk(ast.parse(source)):
        for name in filter(OF_PARALLEL.fullmatch, used(node)):
            hosts = path == HOSTS and "distributed" in name
            if path != PARALLEL and not hosts:
                yield (
                    f"{path}:{node.lineno} names {name}: only {PARALLEL} does. Add what "
                    "you need there; agents are given `average`"
                )


def words(path: str, source: str) -> Iterator[str]:
    """One word for one thing, in every name that we give."""
    for node in ast.walk(ast.parse(source)):
        for name in given(node):
            snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            snake = snake.replace("actor_critic", "")  # a kind of agent, in one word
            for word, ours in WORDS.items():
                if re.search(f"(^|_){word}s?(_|$)", snake):
                    yield f"{path}:{node.lineno} {name}: not {word}, we say {ours}"


def length(path: str, source: str) -> Iterator[str]:
    """A file can be held in mind."""
    lines = len(source.splitlines())
    if lines > LONGEST:
        yield f"{path} has {lines} lines, over {LONGEST}: find the two files in it"


def imported(node: ast.AST) -> list[str]:
    """The modules and names that an import statement asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def used(node: ast.AST) -> list[str]:
    """The names that a node mentions, both plain and dotted."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr, ast.unparse(node)]
    return [part for name in imported(node) for part in (name, name.split(".")[-1])]


def given(node: ast.AST) -> list[str]:
    """The names that a node gives: of variables, fields, arguments, functions, classes."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.id if isinstance(node, ast.Name) else node.attr]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    return [node.arg] if isinstance(node, ast.arg) else []


RULES = [imports, mesh, words, length]
FILES = [
    path.relative_to(ROOT).as_posix()
    for package in MAY_IMPORT
    for path in sorted((ROOT / package).rglob("*.py"))
]


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_its_rules(rule):
    complaints = [
        complaint
        for path in FILES
        for complaint in rule(path, (ROOT / path).read_text())
    ]
    assert not complaints, "\n".join([rule.__doc__, *complaints])


@pytest.mark.parametrize(
    "rule, path, source",
    [
        (imports, "podracer/agent.py", "import envs_jax.catch"),
        (imports, "podracer/agent.py", "from anakin import training"),
        (imports, "envs_jax/catch.py", "def f():\n    from podracer import losses"),
        (imports, "anakin/training.py", "import sebulba"),
        (imports, "sebulba/actor.py", "from envs_jax.catch import Catch"),
        (imports, ADAPTER, "import anakin"),
        (imports, "anakin/training.py", "from tests.environments import Bandit"),
        (mesh, "anakin/training.py", "from jax.sharding import Mesh"),
        (mesh, "anakin/training.py", "from jax import sharding"),
        (mesh, "sebulba/learner.py", "jax.distributed.initialize()"),
        (mesh, "sebulba/learner.py", "layout = jax.sharding.NamedSharding"),
        (mesh, "podracer/agents/ppo.py", "g = jax.lax.pmean(g, 'core')"),
        (words, "podracer/agents/ppo.py", "class RolloutBuffer: ..."),
        (words, "podracer/agents/ppo.py", "def loss(critic_loss): ..."),
        (words, "podracer/agents/ppo.py", "class Config:\n    gamma: float = 0.99"),
        (words, "sebulba/actor.py", "for obs in x: ..."),
        (length, "anakin/training.py", "x = 1\n" * (LONGEST + 1)),
    ],
)
def test_a_rule_notices(rule, path, source):
    assert [*rule(path, source)]


@pytest.mark.parametrize(
    "rule, path, source",
    [
        (imports, ADAPTER, "from envs_jax.wrappers import Batched"),
        (imports, "podracer/__init__.py", "from . import agent"),
        (mesh, PARALLEL, "from jax.sharding import Mesh"),
        (mesh, "anakin/training.py", "mesh = parallel.make_mesh(cores)"),
        (words, "sebulba/actor.py", "jax.random.gamma(key, a, rng=1).obs"),
    ],
)
def test_a_rule_lets_pass(rule, path, source):
    assert not [*rule(path, source)]


def test_importing_starts_no_backend_and_loads_no_simulator():
    """Programs choose their platform, and join other hosts, after importing us."""
    in_processes_of_their_own = "sebulba/host_environments/dm.py"
    modules = [
        path[: -len(".py")].replace("/", ".")
        for path in FILES
        if path != in_processes_of_their_own
    ]
    program = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module.removesuffix(".__init__"))
assert not {{"envpool", "gymnasium"}} & {{*sys.modules}}
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "none"},  # to start any backend is an error
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not finished.returncode, (
        "a module computes with JAX (a jnp constant, jax.devices()) or loads a simulator "
        "when it is imported: do that in the function that needs it\n" + finished.stderr
    )
