"""A user's own code by name, MODULE or MODULE:NAME: imported, or one line on what is wrong.

Also what is imported at its first use, and which command installs an extra.
"""

import dataclasses
import importlib.util
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from podracer.errors import UserError, nearest

DISTRIBUTION = "podracer-rl"  # on PyPI, `podracer` is a library for podcasts


def install(extra: str) -> str:
    """The command that installs what an extra of pyproject.toml consists of.

    It names these packages themselves, whichever way we were installed.
    """
    from importlib import metadata  # slow to import

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a checkout on the path
        requirements = []
    parts = [x.partition(";") for x in requirements]
    marker = f'extra == "{extra}"'
    packages = [
        name.strip() for name, _, rest in parts if marker in rest.replace("'", '"')
    ]
    return "pip install " + " ".join(f"'{x}'" for x in packages or [f".[{extra}]"])


def at_first_use(
    package: str, offered: Sequence[str], places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], Sequence[str]]]:
    """`__getattr__` and `__dir__` of a package that imports what users take from it when they
    do (PEP 562).

    Args:
      package: its name.
      offered: its `__all__`, which a notebook completes.
      places: of a name the MODULE inside the package that it is, or MODULE:NAME. Any other is
        the module of that name.
    """

    def get(name: str) -> Any:
        module, _, attribute = places.get(name, name).partition(":")
        path = f"{package}.{module}"
        try:
            found = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:  # what it needs is missing
                raise
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            ) from None
        return getattr(found, attribute) if attribute else found

    return get, lambda: offered


@dataclasses.dataclass(frozen=True)
class Lazy:
    """A library that is imported when something of it is first used."""

    name: str

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self.name), attribute)


rlax = Lazy("rlax")  # brings TensorFlow Probability: a second


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Of an object that is no dataclass: it has no flags."""


def module(name: str, flag: str) -> ModuleType:
    """Imports a module, of the current folder too.

    Args:
      name: of the module, as `my_agents.reinforce`.
      flag: of the command line that names it, for errors.

    Raises:
      UserError: there is no such module, or it fails while it is imported.
    """
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise UserError(
                f"{flag}: there is no module {missing!r}, neither installed nor in the "
                "current folder"
            ) from error
        raise UserError(
            f"{flag}: module {name!r} fails while it is imported: {describe(error)}"
        ) from error


def exists(name: str) -> bool:
    """Whether there is a module of that name. Imports at most the packages it is in."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
    except Exception:  # noqa: BLE001 of a package that fails: `module` says how
        return "." in name.strip(".")


def refuse_file(path: str, flag: str) -> None:
    """Raises UserError for a file, as `my_env.py:Chase`, in place of its module."""
    name, colon, rest = path.partition(":")
    if name.endswith(".py") or "/" in name:
        parts = name.removesuffix(".py").removeprefix("./").split("/")
        raise UserError(
            f"{flag} is {path!r}, a file; name its module, as in {flag} "
            f"{parts[-1]}{colon}{rest}, and start in its folder"
        )


def resolve(path: str, flag: str) -> Any:
    """What `MODULE:NAME` names; NAME may have dots.

    Raises UserError where it does not exist or its module cannot be imported.
    """
    refuse_file(path, flag)
    name, colon, rest = path.partition(":")
    if not (name and colon and rest):
        raise UserError(f"{flag} is {path!r}; it must be MODULE:NAME")
    value = module(name, flag)
    for part in rest.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            known = defined(value)
            raise UserError(
                f"{flag}: {name!r} has no {part!r}{nearest(part, known)}"
            ) from None
    return value


def defined(owner: Any) -> list[str]:
    """The public names that a module or class defines itself, not those it imports."""
    names = [x for x in vars(owner) if not x.startswith("_")]
    if not isinstance(owner, ModuleType):
        return names
    return [
        x
        for x in names
        if getattr(getattr(owner, x), "__module__", None) == owner.__name__
    ]


def construct(path: str, flag: str) -> Any:
    """What the class or function `MODULE:NAME` makes without arguments.

    Raises UserError where it does not exist or fails.
    """
    make = resolve(path, flag)
    if not callable(make):
        raise UserError(f"{flag}: {path} is {make!r}; it must be a class or a function")
    try:
        return make()
    except Exception as error:
        raise UserError(
            f"{flag}: {path}() fails without arguments: {describe(error)}"
        ) from error


def options(value: Any) -> Any:
    """What can be set of an object: itself if it is a dataclass, else nothing."""
    return value if dataclasses.is_dataclass(value) else NoOptions()


def describe(error: BaseException) -> str:
    """An error as one line, with the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    theirs = last and last[0].filename != __file__  # else it was our call that failed
    where = f" ({last[0].filename}:{last[0].lineno})" if theirs else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{where}"
