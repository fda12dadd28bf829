"""`--config FILE`: a run's config.json, or YAML of the same shape."""

import json
import re
from pathlib import Path
from typing import Any

from podracer import files
from podracer.errors import UserError
from podracer.runs import run


def read(path: str, program: str) -> run.StoredRun:
    """What a file has of a run: names of agent and environment, and a configuration.

    Anything may be left out: then it is as without the file. `config.json` has all of it
    under "config", beside the command and versions that wrote it; that level may be left
    out too. Raises UserError where the file cannot be read, has another shape or is of the
    other command.
    """
    description = _loaded(Path(path))
    content = description.get("config", description)
    if not isinstance(content, dict) or not isinstance(content.get("train", {}), dict):
        raise _wrong(path)
    known = {"agent", "env", "network", "specs", "train", "population"}
    unknown = content.keys() - known
    names = {x: content.get(x) for x in ("agent", "env", "network")}
    if unknown or not all(isinstance(x, str | None) for x in names.values()):
        raise _wrong(path)
    command = description.get("command")
    stored = run.StoredRun(
        Path(path),
        names["agent"],
        names["env"],
        content.get("train", {}),
        {},
        None,
        f"{command}".partition(" ")[0],
        names["network"],
    )
    run.check_program(stored, program)
    return stored


def _loaded(path: Path) -> dict[str, Any]:
    import yaml  # of JSON too, but JSON's own reader says better what is wrong

    class Loader(yaml.SafeLoader):
        """In YAML 1.1, `1e-3` is text."""

    number = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, [*"-+0123456789"])
    try:
        text = files.read(path).decode()
        loaded = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader)
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--config {path}: cannot be read: {reason}") from error
    if not isinstance(loaded, dict):
        raise _wrong(path)
    return loaded


def _wrong(path: str | Path) -> UserError:
    return UserError(
        f"--config {path}: must be as a run's config.json: agent, env and, under train, "
        "the fields of the configuration"
    )
