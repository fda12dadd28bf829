"""A run as a folder in the format of Hugging Face's hub. Nothing is uploaded."""

import json
import os
import re
import shlex
import tempfile
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np
import yaml

from podracer import files
from podracer.agent import Agent
from podracer.errors import UserError
from podracer.runs import run_folder, videos
from podracer.runs.comparison import Mean, evaluation_of
from podracer.runs.listing import printable
from podracer.trained import loading
from podracer.trained.weights import WEIGHTS, is_kept, written

CARD = "README.md"
PRIVATE = ("--run", "--resume", "--config", "--wandb")  # flags that the card leaves out
MOST_METRICS = 2**30  # bytes


def write(
    run: str | Path,
    folder: str | Path,
    updates: int | None = None,
    agent: Agent | None = None,
    trust: bool = False,
) -> list[str]:
    """Writes the folder, which `podracer.load` takes for a run; returns its files' names.

    It holds a model card, the weights, config.json without paths of this machine, the
    metrics, and the curve and a video where the run has them.

    Args:
      run: folder of the run.
      folder: the new one; it must not exist, or be empty.
      updates: of the checkpoint; default: the newest whole one.
      agent: the one that the run trained; needed where a script trained it.
      trust: import the modules of agent and network that the run's folder names.

    Raises:
      UserError: the run cannot be loaded, or the folder holds something, cannot be written,
        or could not be loaded again.
    """
    run, folder = Path(run), Path(folder)
    with files.writing(folder):
        if os.path.lexists(folder) and not (folder.is_dir() and not os.listdir(folder)):
            raise UserError(f"{folder}: is there already; choose another folder")
    trained = loading.restore(run, updates, agent, trust)
    name = folder.absolute().name
    with files.writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".writing-", dir=folder.parent
        ) as parent:
            inside = Path(parent, "folder")
            inside.mkdir()
            _fill(inside, run, trained, name, needs_agent=agent is not None)
            _check(inside, trained, agent, trust)
            os.replace(inside, folder)
    return sorted(x.name for x in folder.iterdir())


def _fill(
    folder: Path, run: Path, trained: loading.Trained, name: str, needs_agent: bool
) -> None:
    (folder / WEIGHTS).write_bytes(written(trained.params))
    description = run_folder.load_config(run)
    description["config"]["train"].pop("keep", None)
    try:
        description = _without_paths(
            description | {"command": _command(description["command"])}
        )
        text = json.dumps(description, indent=2) + "\n"
    except RecursionError:
        raise UserError(f"{run / run_folder.CONFIG}: damaged, too deep") from None
    (folder / run_folder.CONFIG).write_text(text)
    for copied in (run_folder.METRICS, run_folder.CURVE):
        path = run / copied
        if path.is_file() and not path.is_symlink():
            (folder / copied).write_bytes(files.read(path, MOST_METRICS))
    video = _copy_video(run, folder)
    evaluation = evaluation_of(run, trained.run.env, trained.updates)
    card = _card(trained, name, description, evaluation, video, needs_agent)
    (folder / CARD).write_text(card)


def _check(
    folder: Path, trained: loading.Trained, agent: Agent | None, trust: bool
) -> None:
    """Raises UserError unless the folder gives back the agent, bit for bit."""
    try:
        again = loading.restore(folder, None, agent, trust)
    except UserError as error:
        reason = str(error).replace(f"{folder}/", "")
        raise UserError(
            f"{trained.run.folder}: its agent needs more than a folder of the hub holds: "
            f"{reason}"
        ) from error
    pairs = zip(*map(jax.tree.leaves, (again.params, trained.params)), strict=True)
    if not all(np.array_equal(x, y, equal_nan=True) for x, y in pairs if is_kept(y)):
        raise UserError(f"{folder}: its weights are not those that were written")


def _copy_video(run: Path, folder: Path) -> str | None:
    """Copies the run's first video of each kind as replay.*; the name of the last one."""
    copied = None
    for path in videos.find(run):
        name = f"replay{path.suffix.lower()}"
        if not (folder / name).exists():
            (folder / name).write_bytes(videos.read(path).data)
            copied = name
    return copied


def _card(
    trained: loading.Trained,
    name: str,
    description: dict[str, Any],
    evaluation: Mean | None,
    video: str | None,
    needs_agent: bool,
) -> str:
    agent, env = trained.run.agent, trained.run.env
    about = {
        "library_name": "podracer",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "jax"]
        + [printable(x) for x in (agent, env)],
    }
    if evaluation:
        about["model-index"] = [_results(printable(name), printable(env), evaluation)]
    versions = ", ".join(f"{k} {v}" for k, v in description["versions"].items())
    lines = [
        "---",
        yaml.safe_dump(about, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        f"# {_code(agent)} on {_code(env)}",
        "",
        f"An agent trained with podracer, after {trained.updates} updates.",
        "",
    ]
    if evaluation:
        lines += [f"Mean return in its evaluation, 95 % interval: {evaluation}.", ""]
    if (video or "").endswith(".gif"):
        lines += [f"![An episode]({video})", ""]
    extra = ", agent=agent" if needs_agent else ""
    lines += [
        "## Use",
        "",
        "```python",
        "import podracer",
        "",
        f'act = podracer.load("FOLDER"{extra})  # where this repository was downloaded',
        "action = act(observation)  # as the environment gives it",
        "```",
        "",
        "`weights.safetensors` has a tensor for each parameter, named after its path;",
        "`config.json` says how the agent is built.",
        "",
        "## Training",
        "",
        f"    {printable(description['command'])}",
        "",
        f"Versions: {_code(versions)}",
        "",
    ]
    return "\n".join(lines)


def _results(name: str, env: str, evaluation: Mean) -> dict[str, Any]:
    """As huggingface_hub's `EvalResult` is written."""
    task = "reinforcement-learning"
    metric = {"type": "mean_reward", "name": "mean return", "value": evaluation.value}
    result = {
        "task": {"type": task, "name": task},
        "dataset": {"type": env, "name": env},
        "metrics": [metric],
    }
    return {"name": name, "results": [result]}


def _code(text: str) -> str:
    """Text of a run as Markdown's code, which nothing in it can leave."""
    return "`" + printable(text).replace("`", "'").strip() + "`"


def _command(command: str) -> str:
    """A command without the folders and accounts of whoever ran it."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quotation that does not end
        return command.partition(" ")[0]
    shown: list[str] = []
    skipping = False
    for word in words:
        is_flag = word.startswith("--")
        private = is_flag and word.partition("=")[0] in PRIVATE
        if not private and not (skipping and not is_flag):
            shown.append(word)
        skipping = private and "=" not in word
    return shlex.join(map(_without_paths, shown))


def _without_paths(tree: Any) -> Any:
    """JSON with the names of files in place of absolute paths."""
    if isinstance(tree, dict):
        return {key: _without_paths(x) for key, x in tree.items()}
    if isinstance(tree, list):
        return [_without_paths(x) for x in tree]
    if isinstance(tree, str):
        return re.sub(r"(?<![\w.:])~?/[^\s,'\"]+", lambda x: PurePath(x[0]).name, tree)
    return tree
