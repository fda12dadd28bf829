"""Other libraries' pure JAX environments: `envs_jax.make("gymnax:CartPole-v1")`.

One module per library, each with `names()` and `make(name, time_limit, **options)`;
the options are the library's own. A library is imported only when it is used.
"""

import dataclasses
import importlib
from types import ModuleType

from envs_jax.wrappers import MOST_STEPS

LIBRARIES = {  # prefix of the name: module that must be installed
    "brax": "brax",
    "craftax": "craftax",
    "gymnax": "gymnax",
    "jumanji": "jumanji",
    "kinetix": "kinetix",
    "navix": "navix",
    "playground": "mujoco_playground",
    "xland": "xminigrid",
}
ON_PYPI = {"kinetix": "kinetix-env", "xland": "xminigrid"}  # where named otherwise


@dataclasses.dataclass(frozen=True)
class Options:
    """Command-line flags of every library's environments."""

    time_limit: int | None = None
    """environment steps after which an episode is truncated; default: the library's"""

    def __post_init__(self):
        if self.time_limit is not None and not 1 <= self.time_limit <= MOST_STEPS:
            raise ValueError(
                f"time_limit is {self.time_limit}; it must be from 1 to {MOST_STEPS}"
            )


@dataclasses.dataclass(frozen=True)
class PlaygroundOptions(Options):
    """Command-line flags of MuJoCo Playground's environments."""

    randomize: bool = False
    """another model in each episode, drawn by Playground's own function for this environment
    (domain randomization)"""


def options(library: str) -> Options:
    """The command-line flags of a library's environments, at their defaults."""
    return PlaygroundOptions() if library == "playground" else Options()


def load(library: str) -> ModuleType:
    """The adapter module of one of `LIBRARIES`.

    Raises:
      ValueError: the library is not installed, or importing it fails.
    """
    try:
        importlib.import_module(LIBRARIES[library])
    except ImportError as error:
        raise ValueError(
            f"{library}: {error}; pip install {ON_PYPI.get(library, library)}"
        ) from error
    return importlib.import_module(f"{__name__}.{library}")
