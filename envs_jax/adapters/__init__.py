"""Other libraries' pure JAX environments: `envs_jax.make("gymnax:CartPole-v1")`.

A file a library, of its name: `names()` and `make(name, time_limit, **options)`, whose
options are the library's own. No library is loaded before it is asked for.
"""

import dataclasses
import importlib
from types import ModuleType

LIBRARIES = {  # and the module that has to be there
    "brax": "brax",
    "gymnax": "gymnax",
    "jumanji": "jumanji",
    "playground": "mujoco_playground",
}


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command can set of any library's environment."""

    time_limit: int | None = None
    """steps after which an episode is cut off; by default the library's own"""

    def __post_init__(self):
        if self.time_limit is not None and self.time_limit < 1:
            raise ValueError(
                f"time_limit is {self.time_limit}; an episode needs at least 1 step"
            )


def load(library: str) -> ModuleType:
    """The adapter of one of `LIBRARIES`.

    Raises:
      ValueError: the library is not installed, or does not load.
    """
    try:
        importlib.import_module(LIBRARIES[library])
    except ImportError as error:
        raise ValueError(
            f"{library}: {error}; pip install 'podracer[{library}]' brings it"
        ) from error
    return importlib.import_module(f"{__name__}.{library}")
