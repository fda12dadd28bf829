"""The notebooks run from top to bottom, show what they did, and implement no machinery."""

import ast
import builtins
import dis
import json
import os
import re
import sys
import tomllib
from code import InteractiveInterpreter
from pathlib import Path
from types import CodeType, SimpleNamespace

import jax
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = PYPROJECT["project"]["urls"]["Repository"]
NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))
ON_COLAB = jax.__version_info__ < (0, 8)
MOST_BYTES = 300_000  # of a notebook, its pictures included
MOST_CELLS = 16

# What runners and algorithms are made of: a notebook that needs one does their work.
MACHINERY = {
    *("jit", "shard_map", "pmap", "vmap", "scan", "fori_loop", "while_loop"),
    *("grad", "value_and_grad", "optax", "rlax", "flax"),
}
# One notebook shows how to write a loop, an agent and an environment.
ALLOWED = {"agents.ipynb": {"class", "jit", "scan", "grad", "optax"}}

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parsed(cell):
    return ast.parse(TransformerManager().transform_cell(cell.source))


def kinds(cell):
    """What a cell shows: streams by name, pictures and values by their type."""
    return {
        kind
        for output in cell.outputs
        for kind in output.get("data", {output.get("name"): None})
    }


def test_all_are_there():
    names = {path.stem for path in NOTEBOOKS}
    assert names == {"anakin", "sebulba", "agents", "meta_gradient"}


# With the jax that Colab has, by `make test-oldest`, and before a release with the newest.
@(pytest.mark.core if ON_COLAB else pytest.mark.slow)
@each
def test_it_runs(path, tmp_path, monkeypatch):
    """At a small size, in a kernel of this Python, and shows the kinds that are committed."""
    monkeypatch.setenv("PODRACER_NOTEBOOK_STEPS", "2_000")
    flags = [x for x in os.environ["XLA_FLAGS"].split() if "device_count" not in x]
    monkeypatch.setenv("XLA_FLAGS", " ".join(flags))  # to compile in less time
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # which a reader has not set
    specs = KernelSpecManager(kernel_dirs=[])  # no other kernel of this computer
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specs)
    assert manager.kernel_spec.argv[0] == sys.executable

    committed = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    run.cells.append(code_cells(run)[0])  # readers run it again
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(run, manager, timeout=400, resources=resources)
    client.execute(cleanup_kc=True)
    for before, after in zip(code_cells(committed), code_cells(run)):
        assert kinds(before) == kinds(after)


def names(code, operation):
    """The names that code, with the functions in it, loads or stores."""
    yield from (
        x.argval
        for x in dis.get_instructions(code)
        if x.opname in (f"{operation}_NAME", f"{operation}_GLOBAL")
    )
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names(inner, operation)


@pytest.mark.parametrize("name", ["def reinforce", "class Landing"])
def test_its_cell_can_be_saved(name):
    """As a module, below the imports that the last cell names.

    It must define only: what it computed would start JAX before it has its cores.
    """
    notebook = nbformat.read(ROOT / "colab" / "agents.ipynb", as_version=4)
    imports = re.findall("`(import .+?)`", notebook.cells[-1].source)
    (cell,) = [x for x in code_cells(notebook) if name in x.source]
    source = "\n".join([*imports, cell.source])
    defining = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
    assert all(isinstance(x, defining) for x in ast.parse(source).body)
    code = compile(source, name, "exec")
    known = {*names(code, "STORE"), *dir(builtins), "__name__", "__annotations__"}
    assert {*names(code, "LOAD")} <= known
    assert ("    time_limit: int" in source) == ("class Landing" in name)


@each
def test_it_is_short(path):
    assert len(nbformat.read(path, as_version=4).cells) <= MOST_CELLS
    assert path.stat().st_size <= MOST_BYTES


@each
def test_its_outputs_are_of_one_run(path):
    """From top to bottom in a fresh kernel, without errors or warnings."""
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not {"stderr", None} & set().union(*map(kinds, cells))
    assert "image/png" in set().union(*map(kinds, cells))
    shown = json.dumps([cell.outputs for cell in cells])
    assert not re.search(r"/(home|root|tmp|usr|work)/|Warning", shown)


@each
def test_it_opens_on_colabs_tpu(path):
    metadata = nbformat.read(path, as_version=4).metadata
    assert (metadata.accelerator, metadata.colab.gpuType) == ("TPU", "V5E1")


@each
def test_its_badge_opens_it(path):
    badge = nbformat.read(path, as_version=4).cells[0].source
    name = REPOSITORY.removeprefix("https://github.com/")
    address = "https://colab.research.google.com/github"
    assert f"({address}/{name}/blob/main/colab/{path.name})" in badge


@each
@pytest.mark.parametrize("uploaded", [False, True])
def test_colab_installs_it(path, uploaded, tmp_path, monkeypatch):
    """From GitHub, or from a clone that was uploaded; with the machine's own jax."""
    monkeypatch.setitem(sys.modules, "google.colab", None)
    monkeypatch.chdir(tmp_path)
    if uploaded:
        (tmp_path / "podracer").mkdir()
        (tmp_path / "podracer" / "pyproject.toml").touch()
    cell = code_cells(nbformat.read(path, as_version=4))[0]
    ran = []
    shell = SimpleNamespace(run_line_magic=lambda *line: ran.append(line))
    names = {"os": os, "sys": sys, "jax": jax, "get_ipython": lambda: shell}
    guard = next(node for node in parsed(cell).body if isinstance(node, ast.If))
    program = compile(ast.Module([guard], []), path.name, "exec")
    InteractiveInterpreter(names).runcode(program)
    ((magic, line),) = ran
    line = line.format(**names)  # as IPython does
    assert magic == "pip" and f" jax=={jax.__version__} " in line
    assert ("./podracer" if uploaded else f"git+{REPOSITORY}") in line


@each
def test_it_implements_no_machinery(path):
    forbidden = (MACHINERY | {"class"}) - ALLOWED.get(path.name, set())
    for cell in code_cells(nbformat.read(path, as_version=4)):
        nodes = list(ast.walk(parsed(cell)))
        words = {"class" for node in nodes if isinstance(node, ast.ClassDef)}
        imported = {node.name for node in nodes if isinstance(node, ast.alias)}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        words |= {part for name in imported for part in name.split(".")}
        words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert not words & forbidden
