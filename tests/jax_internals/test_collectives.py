"""How often the cores meet in an average."""

import jax
import pytest

from podracer import parallel
from podracer.kernels.collectives import LARGE


@pytest.mark.core
@pytest.mark.parametrize(
    ("sizes", "collectives"), [((2, 3), 1), ((LARGE,), 1), ((2, LARGE, 3, LARGE), 3)]
)
def test_only_large_leaves_are_averaged_on_their_own(sizes, collectives):
    tree = [jax.ShapeDtypeStruct((2, size), "float32") for size in sizes]
    mesh = parallel.make_mesh(2)
    program = parallel.over_cores(
        parallel.AVERAGE, mesh, (parallel.BATCH,), parallel.SHARED
    )
    text = program.lower(tree).as_text()
    assert text.count("stablehlo.all_reduce") == collectives
