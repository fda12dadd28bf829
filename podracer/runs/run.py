"""A run of a command: what its folder holds, and training from the first update, or the
newest checkpoint, to the last."""

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from podracer import command, files, metrics
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.checkpoints.checkpoint import Config as Checkpoint
from podracer.errors import UserError
from podracer.metrics.profile import Profile
from podracer.parallel import hosts
from podracer.runs import evaluation, recording, run_folder, spec_json
from podracer.runs.sinks import Config as Sinks

NAMED = ("agent", "env", "network")  # flags whose value decides which others exist
TRUST = "import the code that a run folder names: agent, network, environment"


@dataclasses.dataclass(frozen=True)
class Keep:
    """What a run writes, where, and when it ends early. Its fields are flags."""

    run: Path | None = None
    """folder of the run; default: a new one under runs/"""
    overwrite: bool = False
    """replace the run that is in the folder already"""
    resume: Path | None = None
    """folder of a run to resume, with the configuration that it has"""
    allow_changes: bool = False
    """let flags change the configuration of a resumed run"""
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    evaluate: evaluation.During = dataclasses.field(default_factory=evaluation.During)
    sinks: command.Flat[Sinks] = dataclasses.field(default_factory=Sinks)
    stop_at: float | None = None
    """mean return of the last 100 episodes at which the run ends early"""
    profile: bool = False
    """write a trace of a few updates after compilation, by jax.profiler"""
    quiet: bool = False
    """print nothing but errors"""

    def __post_init__(self):
        if self.stop_at is not None and math.isnan(self.stop_at):
            raise UserError("stop_at is nan; it must be a mean return")

    @property
    def is_for_one_run(self) -> bool:
        """Whether a flag is set that several runs in one program do not support."""
        alone = (self.resume, self.evaluate.steps, self.stop_at)
        return self.profile or any(x is not None for x in alone)


class Stored(NamedTuple):
    """What the folder of a run says about it."""

    folder: Path
    agent: str  # --agent
    env: str  # --env
    config: dict[str, Any]  # of the command that trained
    versions: dict[str, str]
    specs: dict[str, Any] | None  # observation, action: as JSON; frame_stack
    program: str  # that trained: anakin, sebulba
    network: str | None = None  # --network; None: the built-in one

    @property
    def is_of_meta_train(self) -> bool:
        """Whether the run learned an update rule, and has no agent."""
        return "rule" in self.config


def stored(folder: str | Path) -> Stored:
    """Reads it. Raises UserError where there is no run, or its config.json is damaged."""
    description = run_folder.load_config(folder, "agent", "env", "train")
    kept = description["config"]
    return Stored(
        Path(folder),
        kept["agent"],
        kept["env"],
        kept["train"],
        description["versions"],
        kept.get("specs"),
        description["command"].partition(" ")[0],
        kept.get("network"),
    )


def check_program(stored: Stored, program: str) -> None:
    """Raises UserError for a run of the other architecture, or of a script."""
    if "script" in stored.config:
        raise UserError(
            f"{stored.folder}: recorded by the script {stored.config['script']}, not by "
            f"{program}: run the script again, or use podracer.load(RUN, agent=...)"
        )
    if stored.program in ("anakin", "sebulba") and stored.program != program:
        raise UserError(
            f"{stored.folder}: a run of {stored.program}, not of {program}: say "
            f"{stored.program} instead"
        )


def check_same_names(stored: Stored, given: Mapping[str, Any]) -> None:
    """Raises UserError where another agent or environment is named than the run's."""
    names = {x: getattr(stored, x) for x in NAMED} | {"preset": "none"}
    for flag, name in names.items():
        if given.get(flag) not in (None, name):
            raise UserError(
                f"--{flag} is {given[flag]}, but {stored.folder} is {stored.agent} on "
                f"{stored.env} with its own hyperparameters: leave the flag out, or start "
                "another run"
            )


def check_trusted(
    stored: Stored,
    given: Mapping[str, Any],
    agents: Container[str],
    brings_code: Callable[[str], bool],
) -> None:
    """Raises UserError where a folder names code that its user did not name, too.

    A run folder may come from anyone: it alone must not choose which code is imported.

    Args:
      stored: the run.
      given: the values of the flags `agent`, `network`, `env` and `trust`, if there;
        a name among them is used in place of the run's, or is equal to it.
      agents: names of the built-in agents.
      brings_code: (name of an environment) -> whether it imports a user's code.
    """
    code = {
        "agent": stored.agent is not None and stored.agent not in agents,
        "network": stored.network is not None,
        "env": stored.env is not None and brings_code(stored.env),
    }
    missing = " ".join(
        f"--{flag} {getattr(stored, flag)}"
        for flag, is_code in code.items()
        if is_code and not given.get(flag)
    )
    if missing and not given.get("trust"):
        raise UserError(
            f"{stored.folder} names code to import, {missing}; if you trust it, add "
            "that, or --trust (podracer.load: trust=True)"
        )


def seen(observation_spec: Any, action_spec: Any, frame_stack: int = 1) -> dict:
    """What a run keeps of its environment, for `podracer.load` to do without it."""
    return {
        "observation": spec_json.encode(observation_spec),
        "action": spec_json.encode(action_spec),
        "frame_stack": frame_stack,
    }


def name_of(about: dict[str, Any]) -> str:
    """The default name of a run's folder, without the time."""
    return f"{about['agent']}-{about['env']}".replace(":", "-")


def check_startable(folder: Path | None, overwrite: bool) -> None:
    """Raises UserError where a new run could not write its folder; leaves nothing there.

    Comes before compilation, which takes long; `run_folder.create` looks again.
    """
    place = Path("runs") if folder is None else folder
    try:
        with files.writing(place):  # its name may be too long
            str(place.absolute()).encode()
            exists = folder is not None and folder.is_dir()
    except UnicodeEncodeError:  # Orbax could not write there
        raise UserError(
            f"{str(place)!a}: its path is not valid UTF-8; choose another folder"
        ) from None
    if exists:
        if run_folder.is_held(folder):
            raise UserError(
                f"{folder}: another process is writing this run; wait for it, stop it, or "
                "choose another folder"
            )
        run_folder.check_free(folder, overwrite)
    while not place.exists() and not place.is_symlink():
        place = place.parent
    with files.writing(folder or "runs"), tempfile.TemporaryDirectory(dir=place):
        pass


def stop_early(
    updates: recording.Updates,
    at: float,
    recent: metrics.Recent,
    stop: Callable[[], None],
    say: Callable,
) -> recording.Updates:
    """The same updates; calls `stop` once `recent`, which gets their rows, has reached `at`."""
    with contextlib.closing(updates):
        for state, row in updates:
            recent.add(row or {})
            yield state, row
            if row and recent.has_reached(at):
                say(
                    f"stopped early: mean return {recent.mean_return():.4g} has reached "
                    f"{at:g} after {row['steps']:,.0f} steps"
                )
                stop()


def keep(start: Callable[..., Any], config: Any, play: Any, **about: Any) -> Path:
    """Trains, keeps a folder of it up to date, and returns the folder; see `opened`."""
    with opened(start, config, play, **about) as (folder, updates):
        for _ in updates:
            pass
    return folder


@contextlib.contextmanager
def opened(
    start: Callable[..., Generator[tuple[Any, dict[str, float] | None]]],
    config: Any,
    play: Callable[[Any, int], evaluation.Evaluation],
    **about: Any,
) -> Iterator[tuple[Path, recording.Updates]]:
    """Yields a run's folder and its training loop, which is recorded there.

    Args:
      start: (restore, stopped) -> the training loop; both are those of `anakin.train`.
      config: the command's, with `total_steps` and `keep`.
      play: (state, episodes) -> an evaluation of its policy, for `keep.evaluate`.
      **about: kept with it: `agent` and `env`, the names, and `specs`, see `seen`.
    """
    keep, title = config.keep, f"{about['agent']} on {about['env']}"
    first = hosts.this() == 0
    say = print if first and not keep.quiet else lambda line: None
    profile = Profile(keep.profile, say)
    reached: list[bool] = []

    def checkpoints_in(folder: Path) -> Checkpoints:
        run_folder.check_shared(folder)
        return Checkpoints(folder / run_folder.CHECKPOINTS, keep.checkpoint)

    def create() -> str:
        name = name_of(about)
        created = run_folder.created(keep.run, kept, keep.overwrite, name)
        return str(stack.enter_context(created))  # held to the end

    kept = about | {"train": config}
    with command.stopping() as asked, contextlib.ExitStack() as stack:

        def stopped() -> bool:
            profile.step()
            return asked() or bool(reached)

        if keep.resume is None:
            hosts.lead(lambda: check_startable(keep.run, keep.overwrite))
            updates = start(restore=None, stopped=stopped)
            folder = Path(hosts.lead(create))
            checkpoints = checkpoints_in(folder)
        else:
            folder = keep.resume
            if first:
                stack.enter_context(run_folder.held(folder))
            checkpoints = checkpoints_in(folder)
            updates = start(restore=checkpoints.restore, stopped=stopped)
            if first:
                metrics.cut(folder / run_folder.METRICS, checkpoints.restored)
                run_folder.rewrite_config(folder, kept)
        updates = profile.around(updates, folder / run_folder.PROFILE)
        if not first:
            yield folder, recording.followed(updates, checkpoints)
            return
        rows = folder / run_folder.METRICS
        if keep.stop_at is not None:
            recent = metrics.Recent(metrics.read(rows) if rows.exists() else ())
            updates = stop_early(
                updates, keep.stop_at, recent, lambda: reached.append(True), say
            )
        steps = metrics.last(rows).get("steps", 0)
        recorded = recording.recorded(
            updates,
            folder,
            config.total_steps,
            title,
            keep.quiet,
            checkpoints,
            keep.sinks,
            evaluation.Evaluator(keep.evaluate, play, steps),
        )
        with contextlib.closing(recorded):
            yield folder, recorded
