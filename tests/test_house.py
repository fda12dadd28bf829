"""House rules: imports, floors, cycles, meshes, no backend at import.

A rule checks one node of a file's syntax tree and yields a message for each violation.
CONTRIBUTING.md explains the rules.
"""

import ast
import graphlib
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# Which of our packages the modules of each package may import.
MAY_IMPORT = {
    "podracer": {"podracer"},
    "envs_jax": {"envs_jax"},
    "anakin": {"anakin", "podracer", "envs_jax"},
    "sebulba": {"sebulba", "podracer"},
}
OURS = {*MAY_IMPORT, "benchmarks", "tests"}
ADAPTER = "sebulba/host_environments/envs_jax.py"  # may import envs_jax as well

# The rooms of podracer: a room may import rooms on lower floors only.
FLOORS = [
    {"agent", "errors", "interrupts"},
    {"kernels"},
    {"parallel", "files", "imports", "observations", "starts", "sums"},
    {"networks", "transformations", "metrics", "command", "checkpoints", "exported"},
    {"learning", "runs", "plan"},
    {"rules"},
    {"agents", "launch", "tune"},
    {"trained", "training"},
    {"__main__", "__init__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS, 1) for room in rooms}

PARALLEL = "podracer/parallel/"
KERNELS = "podracer/kernels/"
OF_KERNELS = re.compile(r"platform_dependent|register_lowering|default_backend")
HOSTS = "podracer/parallel/hosts.py"
OF_PARALLEL = re.compile(
    r"jax\.(distributed|sharding)|Mesh|PartitionSpec|\w+Sharding|shard_map|pmap"
    r"|axis_(index|size)|p(mean|sum|max|min|permute|sum_scatter)|all_(gather|to_all)"
)


def imports(path: str, node: ast.AST) -> Iterator[str]:
    """A package imports only those of our packages that MAY_IMPORT lists for it."""
    package = path.split("/")[0]
    allowed = MAY_IMPORT[package] | ({"envs_jax"} if path == ADAPTER else set())
    for name in imported(node):
        if name.split(".")[0] in OURS - allowed:
            yield (
                f"imports {name}, but {package} may import only "
                f"{' and '.join(sorted(allowed))}: move what both need into podracer, or "
                "pass it as an argument"
            )


def floors(path: str, node: ast.AST) -> Iterator[str]:
    """Inside podracer, a room imports rooms on lower floors only."""
    package, own = path.removesuffix(".py").split("/")[:2]
    if package != "podracer":
        return
    if own not in FLOOR:
        if isinstance(node, ast.Module):
            yield "belongs to no room: move it into one of FLOORS, or add a room there"
        return
    for name in imported(node):
        root, _, rest = name.partition(".")
        room = rest.partition(".")[0]
        other = room != own and root == "podracer" and FLOOR.get(room)
        if other and other >= FLOOR[own]:
            yield (
                f"imports {name} on floor {other} from floor {FLOOR[own]}: move what both "
                f"need to a floor below {FLOOR[own]}"
            )


def mesh(path: str, node: ast.AST) -> Iterator[str]:
    """Only one room refers to meshes, axes and shardings, one file to other processes."""
    for name in filter(OF_PARALLEL.fullmatch, used(node)):
        allowed = HOSTS if name.startswith("jax.distributed") else PARALLEL
        if not path.startswith(allowed):
            yield (
                f"refers to {name}, which only {allowed} may: add what you need there; an "
                "agent averages over cores with its argument `average`"
            )


def machines(path: str, node: ast.AST) -> Iterator[str]:
    """Only one room computes the same in another way for some machine."""
    for name in filter(OF_KERNELS.fullmatch, used(node)):
        if not path.startswith(KERNELS):
            yield (
                f"refers to {name}, which only {KERNELS} may: write there what a machine "
                "computes faster, as a drop-in for an operation of JAX"
            )


def private(path: str, node: ast.AST) -> Iterator[str]:
    """Only one file imports what a library keeps to itself, and says why."""
    for name in imported(node):
        if "._" in name and path != HOSTS:
            yield f"imports {name}, which may change with any version: use what is public"


def imported(node: ast.AST) -> list[str]:
    """The modules and names that an import statement imports, with dots."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def used(node: ast.AST) -> list[str]:
    """The names that a node refers to, both plain and with dots."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr, ast.unparse(node)]
    return [part for name in imported(node) for part in (name, name.split(".")[-1])]


SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for package in MAY_IMPORT
    for path in sorted((ROOT / package).rglob("*.py"))
}


def violations(rule: Callable, path: str, source: str) -> list[str]:
    return [
        f"{path}:{getattr(node, 'lineno', 1)} {message}"
        for node in ast.walk(ast.parse(source))
        for message in rule(path, node)
    ]


@pytest.mark.parametrize("rule", [imports, floors, mesh, machines, private])
def test_our_packages_follow_the_rule(rule):
    found = [x for item in SOURCES.items() for x in violations(rule, *item)]
    assert not found, "\n".join([rule.__doc__, *found])


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
        (floors, "podracer/new.py", ""),
        (floors, "podracer/agent.py", "from podracer.networks import heads"),
        (floors, "podracer/learning/losses.py", "from podracer import runs"),
        (floors, "podracer/kernels/new.py", "from podracer import parallel"),
        (
            floors,
            "podracer/networks/heads.py",
            "def f():\n    import podracer.plan.hlo",
        ),
        (mesh, "podracer/parallel/cores.py", "jax.distributed.initialize()"),
        (mesh, "anakin/training.py", "from jax.sharding import Mesh"),
        (mesh, "anakin/training.py", "from jax import sharding"),
        (mesh, "sebulba/learner.py", "jax.distributed.initialize()"),
        (mesh, "sebulba/learner.py", "layout = jax.sharding.NamedSharding"),
        (mesh, "podracer/agents/ppo.py", "g = jax.lax.pmean(g, 'core')"),
        (machines, "podracer/agents/ppo.py", "jax.lax.platform_dependent(x, cpu=f)"),
        (machines, "anakin/training.py", "from jax.lax import platform_dependent"),
        (private, "sebulba/actor.py", "from jax._src import dispatch"),
    ],
)
def test_a_rule_notices(rule, path, source):
    assert violations(rule, path, source)


@pytest.mark.parametrize(
    "rule, path, source",
    [
        (imports, ADAPTER, "from envs_jax.wrappers import Batched"),
        (imports, "podracer/__init__.py", "from . import agent"),
        (floors, "podracer/runs/run.py", "from podracer.runs import plot, sinks"),
        (floors, "podracer/runs/run.py", "from podracer import files, metrics"),
        (mesh, "podracer/parallel/mesh.py", "from jax.sharding import Mesh"),
        (mesh, HOSTS, "jax.distributed.initialize()"),
        (machines, f"{KERNELS}loops.py", "jax.lax.platform_dependent(x, cpu=f)"),
        (private, HOSTS, "from jax._src.distributed import global_state"),
        (mesh, "anakin/training.py", "mesh = parallel.make_mesh(cores)"),
    ],
)
def test_a_rule_lets_pass(rule, path, source):
    assert not violations(rule, path, source)


def test_no_module_imports_itself_through_others():
    graph = {module_of(path): our_imports(path) for path in SOURCES}
    assert not cycle(graph), "move what they need from each other into a third module"


def test_an_import_cycle_is_noticed():
    assert {*cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})} == {"a", "b", "c"}
    assert not cycle({"a": {"b", "c"}, "b": {"c"}})


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules of which each is imported by the next and the first is also the last."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def our_imports(path: str) -> set[str]:
    """Those of our modules that a file imports, anywhere in it."""
    modules, found = {module_of(path) for path in SOURCES}, set()
    for node in ast.walk(ast.parse(SOURCES[path])):
        names = imported(node)
        if isinstance(node, ast.ImportFrom) and {*names[1:]} <= modules:
            names = names[1:]  # submodules only: the package's own names are not needed
        found |= {*names} & modules
    return found


def test_importing_starts_no_backend_and_loads_no_simulator():
    """Programs choose their platform, and join other hosts, after importing us."""
    in_worker_processes = {
        f"sebulba/host_environments/{name}.py" for name in ("dm", "guarded", "masked")
    }
    modules = [module_of(path) for path in SOURCES if path not in in_worker_processes]
    program = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
assert not {{"envpool", "gymnasium", "rlax"}} & {{*sys.modules}}
import rlax  # as while a program is traced, where a constant of a module would leak
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "none"},  # starting any backend is an error
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert not finished.returncode, (
        "a module uses a JAX backend (a jnp constant, jax.devices()), or loads a simulator "
        "or rlax, when it is imported: move that into the function that needs it\n"
        + finished.stderr
    )
