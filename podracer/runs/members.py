"""The runs of one program: each has its own folder, as if it had been trained alone.

The members of a population have one, too; what they take from one another is in their rows.
"""

import contextlib
import dataclasses
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from podracer import command, files, metrics
from podracer.checkpoints import finding
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.command import spaces
from podracer.errors import UserError
from podracer.parallel import hosts
from podracer.runs import lineage, recording, results, run, run_folder
from podracer.runs.listing import to_points
from podracer.runs.progress import Progress
from podracer.runs.sinks import Sinks


class Member(NamedTuple):
    """One of the runs."""

    name: str  # of its folder
    seed: int
    hyperparameters: dict[str, float]  # of its agent, those that are swept
    config: Any  # the command's, as if it ran alone
    population: int | None = None  # how many it shares learners with

    def about(self, names: dict[str, Any]) -> dict[str, Any]:
        """What its config.json says, with `names` of agent and environment."""
        marked = {"population": self.population} if self.population else {}
        return names | {"train": self.config} | marked


def choose(config: Any) -> list[Member]:
    """Every seed with every combination of the swept values, or a population's members.

    Args:
      config: a command's, with `seed`, `seeds`, `sweep`, `population`, `pbt`, `agent`,
        `cores` and `keep`.

    Raises:
      UserError: values are impossible, or two runs would have one folder.
    """
    if config.population:
        return _drawn(config)
    fields = swept(config)
    names = [name for name, _ in fields]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"sweep has {name} twice: give all of its values at once, "
                f"{name.replace('_', '-')}=VALUE,VALUE"
            )
    members = []
    for values in itertools.product(*(values for _, values in fields)):
        hyperparameters = dict(zip(names, values, strict=True))
        agent = dataclasses.replace(config.agent, **hyperparameters)
        prefix = "".join(
            f"{name.replace('_', '-')}-{x:g}-" for name, x in hyperparameters.items()
        )
        for seed in range(config.seed, config.seed + config.seeds):
            alone = dataclasses.replace(
                config, agent=agent, seed=seed, seeds=1, sweep=(), cores=1
            )
            name = f"{prefix}seed-{seed}"
            members.append(Member(name, seed, hyperparameters, alone))
    [(name, times)] = Counter(x.name for x in members).most_common(1)
    if times > 1:
        raise UserError(
            f"sweep gives {times} runs the folder {name}: leave equal values out, and "
            "choose others that differ in their first six digits"
        )
    return members


def swept(config: Any) -> list[tuple[str, list[float]]]:
    """The fields of `config.sweep` and their values. Raises UserError."""
    return [_sweep(config.agent, text) for text in config.sweep]


def _drawn(config: Any) -> list[Member]:
    """The members of a population, each with hyperparameters drawn from their ranges."""
    ranges = config.pbt.ranges
    for name, ends in ranges.items():
        for end in ends:
            spaces.check_takes(config.agent, name, end, "pbt.fields")
    places = np.random.default_rng(config.seed).random((config.population, len(ranges)))
    members = []
    for number, row in enumerate(places):
        drawn = zip(ranges.items(), row, strict=True)
        hyperparameters = {name: float(x.at(place)) for (name, x), place in drawn}
        agent = dataclasses.replace(config.agent, **hyperparameters)
        seed = config.seed + number
        alone = dataclasses.replace(
            config,
            agent=agent,
            seed=seed,
            population=None,
            pbt=type(config.pbt)(),
            cores=1,
        )
        name, shares = f"member-{number}", config.population * config.pbt.exploit
        members.append(Member(name, seed, hyperparameters, alone, shares or None))
    return members


def _sweep(agent: Any, text: str) -> tuple[str, list[float]]:
    """`learning-rate=1e-3,3e-3` as the field and its values."""
    name, values = spaces.assignment(text)
    if name not in spaces.floats(agent):
        raise UserError(
            f"sweep is {text!r}; it must be FIELD=VALUE,VALUE with one of the agent's "
            f"hyperparameters: {spaces.listed(agent)}"
        )
    try:
        return name, [float(x) for x in values.split(",")]
    except ValueError:
        raise UserError(
            f"sweep is {text!r}; {values!r} must be numbers, separated by commas"
        ) from None


def train(
    start: Callable[..., Generator[tuple[Any, list[Any] | None]]],
    state_of: Callable[[Any, int], Any],
    members: Sequence[Member],
    config: Any,
    **about: Any,
) -> Path:
    """Trains all of them; returns the folder that holds a folder of each.

    With several hosts each records its own (`hosts.share`), and the first what they share.

    Args:
      start: (stopped, and restore where they resume) -> the training loop, as
        `anakin.population.train`.
      state_of: (state, number) -> a run's own state.
      members: the runs.
      config: the command's, with `total_steps` and `keep`.
      **about: as for `run.train`.

    Raises FloatingPointError at the end for the runs that failed before.
    """
    options = config.keep
    if options.resume:
        return _resume(start, state_of, members, config, about)
    with command.stopping() as stopped, contextlib.ExitStack() as stack:
        # Before anything is compiled or written.
        hosts.lead(partial(_check_startable, members, options))
        updates = stack.enter_context(contextlib.closing(start(stopped=stopped)))
        base = Path(hosts.lead(partial(_base, options.run, run.name_of(about))))
        run_folder.check_shared(base)
        live = {}
        for number in hosts.share(len(members)):
            m = members[number]
            path = base / m.name
            created = run_folder.created(path, m.about(about), options.overwrite)
            one = _Recording(created, m, options)
            live[number] = stack.enter_context(one)
        failures = _recorded(
            stack, updates, state_of, live, base, members, config, about, {}
        )
        if stopped():
            run.say_resuming(_say(options), base, about)
    _end(failures)
    return base


def _check_startable(members: Sequence[Member], options: Any) -> None:
    # Its curve would be replaced, and its members would be in no list.
    if options.run and (options.run / run_folder.CONFIG).exists():
        raise UserError(
            f"{options.run}: is a run itself; choose another folder for several runs"
        )
    for m in members:
        folder = options.run / m.name if options.run else None
        if folder:
            files.check_no_link(folder)
        run_folder.check_startable(folder, options.overwrite)


def _base(folder: Path | None, name: str) -> str:
    """The folder that holds those of the runs; it is there where other hosts look for it."""
    base = folder or run_folder.fresh(name)
    if hosts.number_of() > 1:
        base = base.absolute()
        with files.writing(base):
            base.mkdir(parents=True, exist_ok=True)
    return str(base)


def _resume(
    start: Callable[..., Generator[tuple[Any, list[Any] | None]]],
    state_of: Callable[[Any, int], Any],
    members: Sequence[Member],
    config: Any,
    about: dict[str, Any],
) -> Path:
    """All of them from the newest checkpoint that all have, but those that failed before it."""
    options, base = config.keep, config.keep.resume.absolute()
    folders = {i: base / members[i].name for i in hosts.share(len(members))}
    with command.stopping() as stopped, contextlib.ExitStack() as stack:
        run_folder.check_shared(base)
        for folder in folders.values():
            run_folder.load_config(folder)
            stack.enter_context(run_folder.held(folder))
        updates, errors = hosts.lead(partial(_common, base, members))
        failures = {int(i): FloatingPointError(x) for i, x in errors.items()}
        is_done = partial(_is_done, base, members, updates, config.total_steps)
        say = _say(options)
        if hosts.lead(is_done):
            say(f"{base}: all steps of its runs are done: nothing was left to do")
            return base

        def restore(states: Sequence[Any], layout: Any) -> list[Any]:
            return [
                state
                if number in failures
                else _checkpoints(folder, options).restore(state, layout, updates)
                for (number, folder), state in zip(folders.items(), states, strict=True)
            ]

        loop = start(stopped=stopped, restore=restore)
        stack.enter_context(contextlib.closing(loop))
        live = {}
        for number, folder in folders.items():
            if number in failures:
                continue
            _set_aside(folder / run_folder.CHECKPOINTS, updates)
            metrics.cut(folder / run_folder.METRICS, updates)
            run_folder.rewrite_config(folder, members[number].about(about))
            one = _Recording(contextlib.nullcontext(folder), members[number], options)
            live[number] = stack.enter_context(one)
        failures = _recorded(
            stack, loop, state_of, live, base, members, config, about, failures
        )
        if stopped():
            run.say_resuming(say, base, about)
    _end(failures)
    return base


def _common(base: Path, members: Sequence[Member]) -> tuple[int, dict[str, str]]:
    """The newest checkpoint, by its updates, that all runs have, and the errors of the runs
    that had failed before it, by their number: none in a population, where failed ones are
    replaced. Raises UserError where there is none."""
    folders = [base / m.name for m in members]
    replaced = any(m.population for m in members)
    states = {folder: run_folder.load_state(folder) for folder in folders}
    whole = {x: {*finding.find_whole(x / run_folder.CHECKPOINTS)} for x in folders}
    failed = [x for x in folders if states[x].get("state") == "failed" and not replaced]
    others = [x for x in folders if x not in failed] or folders
    common = set.intersection(*(whole[x] for x in others))
    if not common:
        raise UserError(
            f"{folders[0].parent}: its runs have no whole checkpoint of the same update: "
            + ("" if replaced else f"resume each alone, {folders[0]}, or ")
            + "start them again"
        )
    updates = max(common)
    return updates, {
        f"{folders.index(x)}": states[x].get("error", "failed")  # as JSON has it
        for x in failed
        if updates not in whole[x]
    }


def _is_done(
    base: Path, members: Sequence[Member], updates: int, total_steps: int
) -> bool:
    """Whether each run's newest row is its last one, and of the checkpoint after `updates`."""
    rows = [metrics.last(base / m.name / run_folder.METRICS) for m in members]
    return all(
        (row.get("steps") or 0) >= total_steps and row.get("updates") == updates
        for row in rows
    )


def _set_aside(checkpoints: Path, updates: int) -> None:
    """Renames the newer checkpoints: Orbax saves nothing that is older than one it finds."""
    for newer in finding.find_checkpoints(checkpoints):
        if newer > updates:
            path = checkpoints / str(newer)
            aside = path.with_name(f"{newer}.ahead")
            with files.writing(path):
                if aside.exists():
                    shutil.rmtree(aside)
                path.rename(aside)


def _checkpoints(folder: Path, options: Any) -> Checkpoints:
    return Checkpoints(folder / run_folder.CHECKPOINTS, options.checkpoint, alone=True)


def _end(failures: Mapping[Path, FloatingPointError]) -> None:
    """Raises the errors of runs that failed, once all hosts have saved theirs."""
    hosts.meet()
    if failures:
        raise FloatingPointError("; ".join(f"{k}: {x}" for k, x in failures.items()))


class _Recording:
    """Of one run: its folder, which is locked, its rows and checkpoints."""

    def __init__(
        self,
        folder: contextlib.AbstractContextManager[Path],
        member: Member,
        options: Any,
    ):
        self.row: dict[str, float] | None = None  # the newest
        total_steps = member.config.total_steps
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            self.folder = enter(folder)
            self._check_ours = enter(recording.track_state(self.folder, total_steps))
            self._sinks = enter(Sinks(self.folder, total_steps, options.sinks))
            self.checkpoints = enter(_checkpoints(self.folder, options))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> bool | None:
        return self._stack.__exit__(*error)

    def write(self, row: dict[str, float]) -> None:
        self._check_ours()
        self.row = row
        self._sinks.write(row)

    def save(self, state: Any) -> None:
        self._check_ours()
        self.checkpoints.save(state, self.row)

    def fail(self, error: FloatingPointError) -> None:
        """Ends this run, as if it were alone; the others continue."""
        with contextlib.suppress(FloatingPointError), self._stack:
            raise error


def _recorded(
    stack: contextlib.ExitStack,
    updates: Generator[tuple[Any, list[Any] | None]],
    state_of: Callable[[Any, int], Any],
    live: dict[int, _Recording],
    base: Path,
    members: Sequence[Member],
    config: Any,
    about: dict[str, Any],
    failures: dict[int, FloatingPointError],
) -> dict[Path, FloatingPointError]:
    """Records what the program yields; returns which runs failed, and why.

    The first host draws the curves of all members when `stack` ends. `failures` are those
    from before, by the run's number.
    """
    title, progress = f"{about['agent']} on {about['env']}", None
    folders = [base / m.name for m in members]
    say = _say(config.keep)
    if hosts.this() == 0:
        run_folder.rewrite_config(base, about | {"train": config}, run_folder.TOGETHER)
        stack.push(partial(_draw, base, folders, title))
        progress = Progress(config.total_steps, title, config.keep.quiet)
        stack.enter_context(progress)
    say(f"{title}: {len(members) - len(failures)} runs, recorded in {base}")
    replaced = any(m.population for m in members)
    failures |= _record(updates, state_of, live, {*failures}, progress, replaced)
    hosts.meet()  # before the first reads what the others have written
    if hosts.this() == 0 and not replaced:  # of a population, its lineage is said
        for line in results.described(results.grouped(folders, title)):
            say(line)
        say(f"{title}: curve in {base / run_folder.CURVE}")
    return {folders[number]: failures[number] for number in sorted(failures)}


def _say(options: Any) -> Callable[[str], None]:
    """Prints a line, on the first host and unless the run is quiet."""
    if options.quiet or hosts.this():
        return lambda line: None
    return partial(print, flush=True)


def _record(
    updates: Generator[tuple[Any, list[Any] | None]],
    state_of: Callable[[Any, int], Any],
    live: dict[int, _Recording],
    ended: set[int],
    progress: Progress | None,
    replaced: bool,
) -> dict[int, FloatingPointError]:
    """Records what the program yields until it ends; returns which runs failed, and why.

    `live` are this host's runs by their number, and `ended` those of all hosts that have
    failed. Those that fail are taken out, but where they are `replaced`: such a run has no
    rows until it is.
    """
    failures: dict[int, FloatingPointError] = {}
    newest: dict[int, dict[str, float]] = {}  # rows of all runs
    state = None

    def save() -> None:
        for number, one in live.items():
            one.save(state_of(state, number))

    with contextlib.suppress(FloatingPointError):  # it was in place of a row
        for state, rows in updates:
            for number, row in enumerate(rows or ()):
                if number in ended or row is None:
                    continue
                one = live.get(number)  # None: another host records it
                if isinstance(row, FloatingPointError):
                    failures[number] = row
                    newest.pop(number, None)
                    if one:
                        one.row = None  # of no checkpoint's
                    if not replaced:
                        ended.add(number)
                        if one:
                            live.pop(number).fail(row)
                else:
                    failures.pop(number, None)
                    newest[number] = row
                    if one:
                        one.write(row)
            if progress and rows and newest:
                progress.update(_together([*newest.values()]))
            due = any(x.checkpoints.is_due(x.row) for x in live.values())
            if hosts.agree(0, due)[1]:
                save()
    if state is not None:
        save()
    for number in live.keys() & failures.keys():
        live[number].fail(failures[number])
    return failures


def _together(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The row that the progress shows: mean return, and steps per second in total."""
    returns = [row["episode_return"] for row in rows]
    known = [x for x in returns if np.isfinite(x)]
    return rows[0] | {
        "episodes": sum(row.get("episodes", 0) for row in rows),
        "finished_share": float(
            np.mean([row.get("finished_share", 1) for row in rows])
        ),
        "episode_return": float(np.mean(known)) if known else float("nan"),
        "steps_per_second": sum(row["steps_per_second"] for row in rows),
    }


def _draw(base: Path, folders: Sequence[Path], title: str, *error: object) -> None:
    """Draws a curve of each run, and one of all: the mean with its interval, or the lineage
    of a population.

    `error` is that of the block which ends: the one to report.
    """
    from podracer.runs import ancestry, plot  # matplotlib is slow to import

    groups: dict[str, list[np.ndarray]] = {}
    with contextlib.suppress(*[UserError] * any(error)), files.writing(base):
        together = lineage.is_population(base)
        of_all = f" of a population of {len(folders)}" * together
        of = {x: g for g, xs in results.grouped(folders, title).items() for x in xs}
        for folder in folders:
            rows = [*metrics.read(folder / run_folder.METRICS)]
            curve = plot.curve(rows, f"{title}, {folder.name}{of_all}")
            plot.save(curve, folder / run_folder.CURVE)
            points = to_points(rows, "steps", "episode_return")
            if len(points):
                groups.setdefault(of[folder], []).append(points)
        if groups and together:
            picture = ancestry.population(lineage.read(base), title)
            plot.save(picture, base / run_folder.CURVE)
        elif groups:
            plot.save(plot.compare(groups, title=title), base / run_folder.CURVE)
