"""The settings that `evaluate` plays in: environments, and values of their options."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from podracer import command
from podracer.command.values import changes
from podracer.errors import UserError
from podracer.runs.run import StoredRun

OPTION = "--env."


class Setting(NamedTuple):
    """An environment with all of its options."""

    env: str
    options: Any  # a dataclass
    differs: tuple[str, ...]  # from training, as `size: 7 -> 11`; or from its defaults

    def __str__(self) -> str:
        differs = ", ".join(self.differs)
        return f"{self.env} ({differs})" if differs else self.env


@dataclasses.dataclass(frozen=True)
class _Of:
    """What the flags `--env.OPTION` change."""

    env: Any


def split(argv: Sequence[str]) -> tuple[list[str], list[str], list[list[str]]]:
    """The command line without environments, their names, and each option with its values.

    An option is `[FLAG]`, or `[FLAG, VALUE, ...]`; one that is there twice has the values of both.
    Raises UserError for `--env` without a name.
    """
    rest: list[str] = []
    names: list[str] = []
    options: dict[str, list[str]] = {}
    taking = rest
    for token in argv:
        flag, equals, value = token.partition("=")
        if token.startswith("--"):
            taking = rest
        if flag == "--env":
            taking = names
        elif flag.startswith(OPTION):
            taking = options.setdefault(flag, [flag])
        else:
            taking.append(token)
            continue
        if equals:
            taking.append(value)
            taking = rest
    if not names and any(x.partition("=")[0] == "--env" for x in argv):
        raise UserError("--env: a name is missing")
    return rest, names, [*options.values()]


def settings(
    stored: StoredRun,
    names: Sequence[str],
    flags: Sequence[list[str]],
    default_options: Callable[[str], Any],
    as_played: Callable[[Any], Any],
) -> list[Setting]:
    """Each named environment with each combination of the options' values.

    Args:
      stored: the run, whose environment has the options that it was trained with.
      names: of environments; none: the run's.
      flags: of `split`.
      default_options: (name) -> a dataclass.
      as_played: (options) -> those in which evaluation plays.

    Raises:
      UserError: an environment is unknown, or an option or value is not its own.
    """
    found = []
    for name in dict.fromkeys(names or [stored.env]):
        default = default_options(name)
        if name == stored.env:
            default = command.filled(default, stored.config["env"], "env.")
        for chosen in itertools.product(*(_choices(default, x) for x in flags)):
            argv = [*itertools.chain(*chosen)]
            options = as_played(command.parse(_Of(default), argv, "evaluate").env)
            differs = tuple(changes(default, options))
            found.append(Setting(name, options, differs))
    return found


def _choices(options: Any, flag: list[str]) -> Iterator[list[str]]:
    """The flag with each of its values; whole where the option takes many, or none."""
    name, *values = flag
    field = name.removeprefix(OPTION).replace("-", "_")
    if len(values) < 2 or isinstance(getattr(options, field, None), tuple):
        yield flag
    else:
        yield from ([name, value] for value in values)


def check_fits(setting: Setting, environment: Any, trained: Any) -> None:
    """Raises UserError where the agent sees or does something else in the environment.

    Args:
      setting: for the message.
      environment: has `observation_spec()` and `action_spec()`.
      trained: a `loading.Trained`.
    """
    for what, spec, own in (
        ("observations", environment.observation_spec(), trained.observation_spec),
        ("actions", environment.action_spec(), trained.action_spec),
    ):
        there, here = _shapes(spec), _shapes(own)
        if there != here:
            raise UserError(
                f"{setting}: its {what} are {there}, the agent was trained with {here}: "
                "choose an environment of the same shapes"
            )


def _shapes(spec: Any) -> str:
    """A spec without names and bounds, as text."""
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path(spec)
    }
    texts = [
        f"{name + ': ' if name else ''}{x.dtype} {[*x.shape]}"
        + (f" of {x.num_values}" if hasattr(x, "num_values") else "")
        for name, x in leaves.items()
    ]
    return ", ".join(texts)
