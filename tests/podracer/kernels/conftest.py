"""Its tests have every kernel."""

import pytest

from podracer.kernels import switch, threefry


@pytest.fixture(autouse=True, scope="module")
def all_kernels(kernels):
    """Those too that the other tests leave out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switch, "_left_out", set())
        patch.delenv(switch.VARIABLE, raising=False)
        threefry.register()
        yield
