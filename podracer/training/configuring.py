"""From the command line to the configuration of a run, the same in both commands.

The command line is read once for the flags that decide which others exist (`--agent`,
`--env`, `--resume`, ...) and once, by tyro, for all others.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from podracer import command, imports, networks
from podracer.agent import Agent
from podracer.agents import AGENTS, from_flags
from podracer.errors import UserError, check_seed
from podracer.networks import encoders
from podracer.parallel import hosts
from podracer.runs import run, run_folder
from podracer.training import files, flags, memory

# What a resumed run may change without --allow-changes, beside `command.PINNED` fields.
FREE = "keep.", "cores:", "tune.trials:", "tune.together:"
CONFIG = (
    "a run's config.json, or YAML of the same shape, to start from; flags win over it"
)


class Configured(NamedTuple):
    """What the command line asks for."""

    config: Any  # flags.Train
    chosen: from_flags.Chosen
    env: str
    others: dict[str, str]  # values of the command's own flags that are read first

    def __str__(self) -> str:
        batch = f"batch_size {self.config.batch_size}"
        return f"{self.chosen.name} on {self.env}, {batch}"

    @property
    def names(self) -> dict[str, str]:
        """What a run folder keeps of it, besides the configuration."""
        network = {"network": self.chosen.network} if self.chosen.network else {}
        return {"agent": self.chosen.name, "env": self.env} | network

    def say_torsos(self, observation_spec: Any) -> None:
        """Prints which torso of our networks each leaf of an observation goes through."""
        network, silent = self.config.network, self.config.keep.quiet or hosts.this()
        if isinstance(network, networks.Config) and not silent:
            print(f"observation {encoders.described(observation_spec, network.torso)}")

    def say_replay(
        self, agent: Agent, observation_spec: Any, cores: int, runs: int = 1
    ) -> None:
        """Prints the memory that replay takes on each learner core, if there is any."""
        if self.config.keep.quiet or hosts.this():
            return
        held = memory.replayed(agent, observation_spec, self.config)
        for line in held.planned(None, cores, runs):
            print(line)

    def make_agent(
        self, agent: Any, observation_spec: Any, action_spec: Any, frame_stack: int = 1
    ) -> Agent:
        """The agent with this configuration of its own, for these environments."""
        return from_flags.make_agent(
            from_flags.Parts(
                self.chosen.algorithm,
                agent,
                self.config.network,
                observation_spec,
                action_spec,
                self.config.interface,
                frame_stack,
                self.chosen.make_network,
                self.config.replay,
                self.config.unroll_length,
            )
        )


def configure(
    argv: Sequence[str],
    kind: type[flags.Train],
    program: str,
    environments: command.Environments,
    others: Mapping[str, Callable[[str | None], command.Choice]] | None = None,
) -> Configured:
    """Reads the command line of `PROGRAM train` or a command with the same flags.

    Joins the other hosts first, if there are any.

    Args:
      argv: what follows the command's name.
      kind: the command's configuration, whose lower-case name is the command's.
      program: "anakin" or "sebulba".
      environments: see there.
      others: more flags that are read first: (value or None) -> what `--help` shows.

    Raises:
      UserError: something is unknown, missing or does not fit; a run to resume is not
        there or is another one; another host was started with something else.
    """
    _refuse_names_without_flags(argv)
    hosts.initialize()
    command.keep_programs()
    others = others or {}
    first = (*run.NAMED, run.RULE, "preset", "resume", "config", *others)
    names = dict.fromkeys(first, ())
    read_first = command.read(argv, names | {"agent": AGENTS}, switches=("trust",))
    read = {name: others[name](read_first[name]) for name in others}
    before = _before(read_first, program)
    if before:
        run.check_trusted(before, read_first, AGENTS, environments.brings_code)
        read_first |= {x: read_first[x] or getattr(before, x) for x in run.NAMED}
    chosen = from_flags.choose(
        read_first["agent"],
        read_first["preset"],
        read_first["network"],
        unroll_length=kind.unroll_length,
        batch_size=kind.batch_size,
    )
    env = environments.choose(read_first["env"] or environments.default)
    known = {field.name for field in dataclasses.fields(kind)}
    preset = {k: v for k, v in chosen.preset._asdict().items() if k in known}
    options = _default_options(environments, env.name, argv)
    new = kind(chosen.preset.config, options, **preset)
    default = _default(new, chosen, before, read_first)
    shown = (
        *chosen.flags,
        env,
        command.Choice("config", read_first["config"], (), CONFIG),
        command.Choice("trust", read_first["trust"], (), run.TRUST),
        *read.values(),
    )
    config = command.parse(default, argv, f"{program} {kind.__name__.lower()}", shown)
    agent = chosen.algorithm.pinned(config.agent, config.network)
    # An environment may change the directory.
    folders = {x: getattr(config.keep, x) for x in ("run", "resume")}
    absolute = {name: path and path.absolute() for name, path in folders.items()}
    keep = dataclasses.replace(config.keep, **absolute)
    config = dataclasses.replace(config, agent=agent, keep=keep)
    refuse_changes(default, config)
    _check_inputs_stay(config)
    if config.keep.resume is None:
        check_seed(config.seed, config.number_of_seeds)
    others = {name: choice.name for name, choice in read.items()}
    configured = Configured(config, chosen, env.name, others)
    _check_same_on_hosts(configured, program)
    return configured


def _default_options(
    environments: command.Environments, name: str, argv: Sequence[str]
) -> Any:
    """The options of an environment; none for `--help` where its library is missing."""
    try:
        return environments.default_options(name)
    except UserError:
        if name == environments.default and {"-h", "--help"}.intersection(argv):
            return imports.NoOptions()
        raise


def _refuse_names_without_flags(argv: Sequence[str]) -> None:
    """Raises UserError for `anakin train ppo cartpole`."""
    names = [*itertools.takewhile(lambda x: not x.startswith("-"), argv)][:2]
    if names and names[0] in AGENTS:
        flags = " ".join(f"--{flag} {x}" for flag, x in zip(("agent", "env"), names))
        raise UserError(f"{' '.join(names)!r} needs flags: {flags}")


def _before(read_first: Mapping[str, Any], program: str) -> run.StoredRun | None:
    """The run of `--resume`, or what `--config` has of one. Raises UserError."""
    for flag in ("resume", "config"):
        if read_first[flag] == "":
            raise UserError(f"--{flag} is empty (an unset shell variable?)")
    if read_first["resume"] is not None:
        if read_first["config"] is not None:
            raise UserError("--resume and --config: leave one of them out")
        before = run.read_run(read_first["resume"], together=True)
        _refuse_meta_train(before)
        run.check_program(before, program)
        run.check_alone(before)
        run.check_same_names(before, read_first)
        return before
    if read_first["config"] is not None:
        if read_first["preset"] not in (None, "none"):
            raise UserError(
                "--preset and --config both choose hyperparameters: leave one of them out"
            )
        before = files.read(read_first["config"], program)
        _refuse_meta_train(before)
        return before
    return None


def _refuse_meta_train(before: run.StoredRun) -> None:
    """Raises UserError for a run that learned an update rule."""
    if before.is_of_meta_train:
        raise UserError(
            f"{before.folder}: a run of meta-train, not of an agent: say anakin meta-train "
            "--resume RUN instead"
        )


def _default(
    new: Any,
    chosen: from_flags.Chosen,
    before: run.StoredRun | None,
    read_first: Mapping[str, Any],
) -> Any:
    """What flags start from: the configuration `new`, or that of an earlier run."""
    if before is None:
        return new
    _refuse_study(new, before, read_first["resume"])
    # Only beside --config: its fields are not those of another agent or environment.
    other = {x for x in run.NAMED if read_first[x] != getattr(before, x)}
    other -= {x for x in ("agent", "env") if getattr(before, x) is None}
    values = {name: x for name, x in before.config.items() if name not in other}
    if "agent" in values:
        values["agent"] = from_flags.upgraded(chosen.algorithm, values["agent"])
    try:
        config = command.filled(new, values)
    except UserError as error:
        if read_first["resume"]:
            raise
        raise UserError(f"--config {read_first['config']}: {error}") from error
    return resumed(config, before if read_first["resume"] else None)


def _refuse_study(new: Any, before: run.StoredRun, resume: str | None) -> None:
    """Raises UserError for `train` that would resume a study, and `tune` a run."""
    wanted, is_study = hasattr(new, "tune"), "tune" in before.config
    if resume and is_study != wanted:
        what = "a study, of several runs" if is_study else "a run, not a study"
        raise UserError(
            f"{before.folder}: {what}: say {before.program} "
            f"{'tune' if is_study else 'train'} --resume instead"
        )


def resumed(config: Any, before: run.StoredRun | None) -> Any:
    """A run's configuration, to resume it or, if `before` is None, to start another."""
    if before:
        _say_versions(before)
    folder = before.folder if before else None
    keep = dataclasses.replace(
        config.keep,
        run=None,
        resume=folder,
        allow_changes=False,
        overwrite=False,
        quiet=False,
    )
    return dataclasses.replace(config, keep=keep)


def _say_versions(before: run.StoredRun) -> None:
    """Prints a line for each package whose version is another one than the run's."""
    for package, version in run_folder.versions().items():
        if before.versions.get(package) != version:
            print(
                f"{before.folder}: written with {package} "
                f"{before.versions.get(package)}, resumed with {version}: results may "
                "differ in the last bits"
            )


def refuse_changes(before: Any, config: Any) -> None:
    """Raises UserError where flags change the configuration of a resumed run."""
    keep = config.keep
    if keep.resume is None:
        return
    if keep.run is not None or keep.overwrite:
        raise UserError(
            "--resume continues in the run's own folder: no --run, --overwrite"
        )
    if keep.allow_changes:
        _refuse_another_seed(before.seed, config)
        return
    if changed := [
        x for x in command.changes(before, config) if not x.startswith(FREE)
    ]:
        raise UserError(
            f"{keep.resume}: its configuration differs: {'; '.join(changed)}; leave the "
            "flags out, or add --allow-changes"
        )


def _refuse_another_seed(before: int, config: Any) -> None:
    """It would change nothing but what the run says of itself."""
    if config.seed != before:
        raise UserError(
            f"seed is {config.seed}, but {config.keep.resume} resumes with the random state "
            f"that came from seed {before}: leave it out, or start another run"
        )


def _check_inputs_stay(config: Any) -> None:
    """Raises UserError for a file of the configuration that --overwrite would remove."""
    keep = config.keep
    if not keep.overwrite or keep.run is None:
        return
    removed = {*run_folder.CONTENTS, *run_folder.RESULTS}
    folder = Path(os.path.realpath(keep.run))
    for name, path in _paths(config):
        # Not where a link points to: the link itself would be removed.
        file = Path(os.path.realpath(path.parent), path.name)
        inside = file.is_relative_to(folder) and file.relative_to(folder).parts
        if removed.intersection(inside or ()):
            raise UserError(
                f"{name} is {path}, which --overwrite may remove with the run in "
                f"{keep.run}: choose another --run, or move the file"
            )


def _paths(config: Any) -> Iterator[tuple[str, Path]]:
    """The files that agent, environment and network are made of, with their fields."""
    for part in ("agent", "env", "network"):
        options = getattr(config, part)
        for field in dataclasses.fields(options):
            if isinstance(path := getattr(options, field.name), Path):
                yield f"{part}.{field.name}", path


def _check_same_on_hosts(configured: Configured, program: str) -> None:
    """Raises UserError where another host was started with something else."""
    config = dataclasses.asdict(configured.config)
    same = {"program": program} | configured.names | run_folder.versions() | config
    hosts.check_same(json.loads(json.dumps(same, default=str)))
