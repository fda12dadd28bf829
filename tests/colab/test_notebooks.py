"""The notebooks run from top to bottom, show what they did, and only import."""

import ast
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))
MOST_BYTES = 300_000  # of a notebook, its pictures included

# What runners and algorithms are made of: a notebook that needs one does their work.
MACHINERY = {
    *("jit", "shard_map", "pmap", "vmap", "scan", "fori_loop", "while_loop"),
    *("grad", "value_and_grad", "optax", "rlax", "flax"),
}

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell):
    """What a cell shows: streams by name, pictures and values by their type."""
    return {
        kind
        for output in cell.outputs
        for kind in output.get("data", {output.get("name"): None})
    }


def test_there_is_one():
    assert "anakin.ipynb" in [path.name for path in NOTEBOOKS]


@each
@pytest.mark.core
def test_it_runs(path, tmp_path, monkeypatch):
    """At a small size, in a kernel of this Python, and shows the kinds that are committed."""
    monkeypatch.setenv("PODRACER_NOTEBOOK_STEPS", "2_000")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # to compile in less time
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("XLA_FLAGS", "MPLBACKEND"):  # which a reader has not set
        monkeypatch.delenv(variable, raising=False)
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


@each
def test_it_is_short(path):
    assert len(nbformat.read(path, as_version=4).cells) <= 12
    assert path.stat().st_size <= MOST_BYTES


@each
def test_its_outputs_are_of_one_run(path):
    """From top to bottom in a fresh kernel, without errors or warnings."""
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not {"stderr", None} & set().union(*map(kinds, cells))
    assert "image/png" in set().union(*map(kinds, cells))


@each
def test_it_imports_and_does_not_implement(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        tree = ast.parse(TransformerManager().transform_cell(cell.source))
        nodes = list(ast.walk(tree))
        assert not [node.name for node in nodes if isinstance(node, ast.ClassDef)]
        imported = {node.name for node in nodes if isinstance(node, ast.alias)}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        words = {part for name in imported for part in name.split(".")}
        words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert not words & MACHINERY
