"""A run of a command: what its folder holds, and training from the first update, or the
newest checkpoint, to the last."""

import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import shlex
import threading
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from podracer import command, metrics
from podracer.checkpoints import finding
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.checkpoints.checkpoint import Config as CheckpointConfig
from podracer.errors import UserError
from podracer.metrics.profile import Profile
from podracer.parallel import hosts
from podracer.runs import evaluation, recording, run_folder, spec_json
from podracer.runs.sinks import Config as SinkConfig

NAMED = ("agent", "env", "network")  # flags whose value decides which others exist
RULE = "pbt.rule"  # one that names code, too
TRUST = "import the code that a run folder names: agent, network, environment, rule"


@dataclasses.dataclass(frozen=True)
class Options:
    """What a run writes, where, and when it ends early. Its fields are flags."""

    run: Path | None = None
    """folder of the run; default: a new one under runs/"""
    overwrite: bool = False
    """replace the run that is in the folder already"""
    resume: Path | None = None
    """folder of a run to resume, with the configuration that it has"""
    allow_changes: bool = False
    """let flags change the configuration of a resumed run"""
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    evaluate: evaluation.Schedule = dataclasses.field(
        default_factory=evaluation.Schedule
    )
    sinks: command.Flat[SinkConfig] = dataclasses.field(default_factory=SinkConfig)
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
        alone = (self.evaluate.steps, self.stop_at)
        return self.profile or any(x is not None for x in alone)


class StoredRun(NamedTuple):
    """What the folder of a run says about it."""

    folder: Path
    agent: str  # --agent
    env: str  # --env
    config: dict[str, Any]  # of the command that trained
    versions: dict[str, str]
    specs: dict[str, Any] | None  # observation, action: as JSON; frame_stack
    program: str  # that trained: anakin, sebulba
    network: str | None = None  # --network; None: the built-in one
    population: int | None = None  # of how many members that share learners it is one

    @property
    def rule(self) -> Any:
        """--pbt.rule of a population; None: there is none of a user's own."""
        pbt = self.config.get("pbt")
        return pbt.get("rule") if isinstance(pbt, dict) else None

    @property
    def is_of_meta_train(self) -> bool:
        """Whether the run learned an update rule, and has no agent."""
        return "rule" in self.config


def read_run(folder: str | Path, together: bool = False) -> StoredRun:
    """The run of a folder or, with `together`, the several runs of one program there.

    Raises UserError where there is no run, or its config.json is damaged.
    """
    several = together and os.path.exists(Path(folder) / run_folder.TOGETHER)
    name = run_folder.TOGETHER if several else run_folder.CONFIG
    description = run_folder.load_config(folder, "agent", "env", "train", name=name)
    config = description["config"]
    return StoredRun(
        Path(folder),
        config["agent"],
        config["env"],
        config["train"],
        description["versions"],
        config.get("specs"),
        description["command"].partition(" ")[0],
        config.get("network"),
        config.get("population"),
    )


def check_program(stored: StoredRun, program: str | None) -> None:
    """Raises UserError for a run of the other architecture, if one is given, or of a script."""
    if "script" in stored.config:
        raise UserError(
            f"{stored.folder}: recorded by the script {stored.config['script']}, not by "
            f"{program or 'a command'}: run the script again, or use podracer.load(RUN, "
            "agent=...)"
        )
    if (
        program
        and stored.program in ("anakin", "sebulba")
        and stored.program != program
    ):
        raise UserError(
            f"{stored.folder}: a run of {stored.program}, not of {program}: say "
            f"{stored.program} instead"
        )


def check_alone(stored: StoredRun) -> None:
    """Raises UserError for a member of a population, which cannot be resumed alone."""
    if stored.population:
        raise UserError(
            f"{stored.folder}: a member of a population, which took over others' learners "
            f"as it trained: resume all, --resume {stored.folder.absolute().parent}"
        )


def check_same_names(stored: StoredRun, flags: Mapping[str, Any]) -> None:
    """Raises UserError where another agent or environment is named than the run's."""
    names = {x: getattr(stored, x) for x in NAMED} | {"preset": "none"}
    for flag, name in names.items():
        if flags.get(flag) not in (None, name):
            raise UserError(
                f"--{flag} is {flags[flag]}, but {stored.folder} is {stored.agent} on "
                f"{stored.env} with its own hyperparameters: leave the flag out, or start "
                "another run"
            )


def check_trusted(
    stored: StoredRun,
    flags: Mapping[str, Any],
    agents: Container[str],
    brings_code: Callable[[str], bool],
) -> None:
    """Raises UserError where a folder names code that its user did not name, too.

    A run folder may come from anyone: it alone must not choose which code is imported.

    Args:
      stored: the run.
      flags: the values of the flags `agent`, `network`, `env`, RULE and `trust`, if there;
        a name among them is used in place of the run's, or is equal to it.
      agents: names of the built-in agents.
      brings_code: (name of an environment) -> whether it imports a user's code.
    """
    code = {
        "agent": stored.agent is not None and stored.agent not in agents,
        "network": stored.network is not None,
        "env": stored.env is not None and brings_code(stored.env),
        RULE: stored.rule is not None,
    }
    named = {flag: getattr(stored, flag) for flag in NAMED} | {RULE: stored.rule}
    missing = " ".join(
        f"--{flag} {named[flag]}"
        for flag, is_code in code.items()
        if is_code and not flags.get(flag)
    )
    if missing and not flags.get("trust"):
        raise UserError(
            f"{stored.folder} names code to import, {missing}; if you trust it, add "
            "that, or --trust (podracer.load: trust=True)"
        )


def encode_specs(observation_spec: Any, action_spec: Any, frame_stack: int = 1) -> dict:
    """What `config.json` says of an environment, for `podracer.load` to do without it."""
    return {
        "observation": spec_json.encode(observation_spec),
        "action": spec_json.encode(action_spec),
        "frame_stack": frame_stack,
    }


def name_of(about: dict[str, Any]) -> str:
    """The default name of a run's folder, without the time."""
    return f"{about['agent']}-{about['env']}".replace(":", "-")


def train(start: Callable[..., Any], config: Any, play: Any, **about: Any) -> Path:
    """Trains to the end, and returns the run's folder; the arguments of `open_run`."""
    with open_run(start, config, play, **about) as (folder, updates):
        for _ in updates:
            pass
    return folder


@contextlib.contextmanager
def open_run(
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
      **about: stored with it: `agent` and `env`, the names, and `specs`, see
        `encode_specs`.
    """
    options, is_first_host = config.keep, hosts.this() == 0
    say = print if is_first_host and not options.quiet else lambda line: None
    profile, reached = Profile(options.profile, say), threading.Event()
    with command.stopping() as is_asked_to_stop, contextlib.ExitStack() as stack:

        def stopped() -> bool:
            profile.step()
            return is_asked_to_stop() or reached.is_set()

        begin = _start_new if options.resume is None else _resume
        if options.resume and hosts.lead(lambda: is_done(config)):
            if is_first_host:  # another process may be writing it
                stack.enter_context(run_folder.held(options.resume.absolute()))
            say(
                f"{options.resume}: all of its {config.total_steps:,} steps are done: "
                "nothing was left to do"
            )
            yield options.resume.absolute(), (x for x in ())
            return
        folder, checkpoints, updates = begin(
            stack, functools.partial(start, stopped=stopped), config, about
        )
        updates = profile.around(updates, folder / run_folder.PROFILE)
        if not is_first_host:
            yield folder, recording.save_only(updates, checkpoints)
            return
        rows = folder / run_folder.METRICS
        if options.stop_at is not None:
            recent = metrics.Recent(metrics.read(rows) if rows.exists() else ())
            updates = stop_early(updates, options.stop_at, recent, reached.set, say)
        steps = metrics.last(rows).get("steps", 0)
        recorded = recording.record_updates(
            updates,
            folder,
            config.total_steps,
            f"{about['agent']} on {about['env']}",
            options.quiet,
            checkpoints,
            options.sinks,
            evaluation.Evaluator(options.evaluate, play, steps),
        )
        with contextlib.closing(recorded):
            yield folder, recorded
        if is_asked_to_stop():
            say_resuming(say, folder, about)


def is_done(config: Any) -> bool:
    """Whether the run that `config` resumes has come to its last step, and saved it.

    With `allow_changes` it is restored in any case, which says what cannot be changed.
    """
    folder = config.keep.resume
    if config.keep.allow_changes:
        return False
    if hasattr(config, "rule") and not (folder / run_folder.RULE).exists():
        return False  # of meta-train, which writes the rule again
    try:
        newest = metrics.last(folder / run_folder.METRICS)
    except (OSError, UserError):  # what follows says why
        return False
    if newest.get("steps", 0) < config.total_steps:
        return False
    whole = next(finding.find_whole(folder / run_folder.CHECKPOINTS), -1)
    return whole >= newest.get("updates", math.inf)


def say_resuming(
    say: Callable[[str], None], folder: Path, about: Mapping[str, Any]
) -> None:
    """Prints the command that resumes a run, or the several runs of one command."""
    if run_folder.load_state(folder).get("state") == "finished":
        return
    base, name = folder, run_folder.CONFIG
    for place in (folder.parent, folder):
        if (place / run_folder.TOGETHER).exists():
            base, name = place, run_folder.TOGETHER
    words = shlex.split(run_folder.load_config(base, name=name)["command"])[:2]
    if words[0] in ("anakin", "sebulba"):  # a script is run again
        flags = shlex.join([*words, "--resume", str(base), *_naming_code(about)])
        say(f"to resume: {flags}")


def _naming_code(about: Mapping[str, Any]) -> Iterator[str]:
    """The flags without which a folder would choose what is imported, see `check_trusted`."""
    agent, env, network = (about.get(name) for name in NAMED)
    if agent and not importlib.util.find_spec(f"podracer.agents.{agent}"):
        yield from ("--agent", agent)
    if env and ":" in env:
        yield from ("--env", env)
    if network:
        yield from ("--network", network)


def _start_new(
    stack: contextlib.ExitStack, start: Callable, config: Any, about: dict[str, Any]
) -> tuple[Path, Checkpoints, recording.Updates]:
    """A run from its first update; its folder is held until `stack` ends."""
    options = config.keep

    def create() -> str:
        contents, name = about | {"train": config}, name_of(about)
        created = run_folder.created(options.run, contents, options.overwrite, name)
        return str(stack.enter_context(created))

    hosts.lead(lambda: run_folder.check_startable(options.run, options.overwrite))
    updates = start(restore=None)
    folder = Path(hosts.lead(create))
    return folder, _checkpoints_of(folder, options), updates


def _resume(
    stack: contextlib.ExitStack, start: Callable, config: Any, about: dict[str, Any]
) -> tuple[Path, Checkpoints, recording.Updates]:
    """A run from its newest checkpoint; its folder is held until `stack` ends."""
    folder, is_first_host = config.keep.resume.absolute(), hosts.this() == 0
    if is_first_host:
        stack.enter_context(run_folder.held(folder))
    checkpoints = _checkpoints_of(folder, config.keep)
    updates = start(restore=checkpoints.restore)
    if is_first_host:
        metrics.cut(folder / run_folder.METRICS, checkpoints.restored_updates)
        run_folder.rewrite_config(folder, about | {"train": config})
    return folder, checkpoints, updates


def _checkpoints_of(folder: Path, options: Options) -> Checkpoints:
    run_folder.check_shared(folder)
    return Checkpoints(folder / run_folder.CHECKPOINTS, options.checkpoint)


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
