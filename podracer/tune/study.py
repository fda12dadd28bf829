"""An Optuna study: asks for trials, trains them, and tells it their results."""

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from podracer import command, files, imports, metrics
from podracer.errors import UserError, check_at_least_one
from podracer.metrics import human
from podracer.runs import listing, run_folder
from podracer.tune.space import make_space

LOG = "study.log"  # Optuna's journal
NAME = "podracer"  # of the study in it
FIELDS, FOLDER, RETRY_OF, ERROR = "fields", "folder", "retry_of", "error"
MOST = 2**16  # trials, each with a folder

Row = dict[str, float]
Result = Row | FloatingPointError | None  # None: no row this time

optuna: Any = imports.Lazy("optuna")


class Trial(NamedTuple):
    """A run to train."""

    name: str  # of its folder
    folder: Path
    values: dict[str, Any]  # of the fields that are searched
    config: Any  # with these values


# (trials, report) -> trains them; `report` takes a result for each, and says whether to end.
Train = Callable[[Sequence[Trial], Callable[[Sequence[Result]], bool]], None]


def tune(
    train: Callable[[Any, Path], Iterable[Row | None]],
    config: Any,
    fields: Sequence[str],
    **options: Any,
) -> Any:
    """Searches for the values of a config's fields with the largest mean return.

    The study lies in a folder, with a folder for each trial. Called again after it was
    interrupted in any way, it continues: no finished trial is lost, and one that was
    interrupted is tried again with its values and in its folder. The first trial has the
    config's own values.

    Args:
      train: (config, folder) -> the rows of metrics of a run that it trains, which may be
        recorded there, as by `podracer.record(..., run=folder, resume=True)`. The mean
        return of the last episodes is reported to the pruner with each row, and is the
        trial's score at the end. A trial that Optuna prunes is closed. One that raises
        FloatingPointError has failed, and the next begins.
      config: a frozen dataclass.
      fields: what to search, see `make_space`.
      **options: of `tune_together`, but for `together`.

    Returns the `optuna.Study`: `best_params`, `best_value`, `trials_dataframe()`, ...
    """

    train_one = alone(lambda trial: train(trial.config, trial.folder))
    return tune_together(train_one, config, fields, **options)


def alone(train: Callable[[Trial], Iterable[Row | None]]) -> Train:
    """One trial at a time, by a loop of rows, which is closed where it ends early."""

    def train_one(trials: Sequence[Trial], report: Callable) -> None:
        [trial] = trials
        rows = train(trial)
        with contextlib.ExitStack() as stack:
            if hasattr(rows, "close"):
                stack.enter_context(contextlib.closing(rows))
            try:
                for row in rows:
                    if report([row]):
                        return
            except FloatingPointError as error:
                report([error])

    return train_one


def tune_together(
    train: Train,
    config: Any,
    fields: Sequence[str],
    *,
    folder: str | Path,
    trials: int = 20,
    together: int = 1,
    sampler: Any = None,
    pruner: Any = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Any:
    """`tune` for a loop that trains several trials at once, as one program.

    Args:
      train: (trials, report) trains them to their ends. It calls `report` with a row, a
        FloatingPointError or None for each trial; once that is true, it should end.
      config, fields: as for `tune`.
      folder: of the study.
      trials: their number, with those of an interrupted study; rounded up to whole
        programs.
      together: number of trials in a program.
      sampler: of Optuna's; default: its TPESampler with `seed`.
      pruner: of Optuna's; default: its MedianPruner. Of several trials in one program none
        is ended before all would be: it would cost as much.
      seed: of the default sampler.
      say: prints a line.

    Returns the `optuna.Study`. Raises UserError for fields that cannot be searched, where
    Optuna is missing, and where another process has the study.
    """
    check_installed()
    check_at_least_one(trials=trials, together=together)
    space, base = make_space(config, fields), Path(folder).absolute()
    with files.writing(base):
        base.mkdir(parents=True, exist_ok=True)
    with run_folder.held(base), command.stopping() as stopped:
        study = load(base, sampler, pruner, seed)
        _begin(study, config, fields, space)
        _retry_unfinished(study)
        while len(_finished(study)) < trials and not stopped():
            asked: list[tuple[Any, Trial]] = []
            while len(asked) < together and (asked or len(_finished(study)) < trials):
                trial = study.ask(space)
                trial.set_user_attr(FOLDER, name_of(trial))
                try:
                    changed = dataclasses.replace(config, **trial.params)
                except ValueError as error:  # values that do not go together
                    _fail(study, trial, error, say)
                    continue
                name = name_of(trial)
                new = Trial(name, base / name, trial.params, changed)
                asked.append((trial, new))
            if asked:
                _train(study, asked, train, stopped, say)
    return study


def check_installed() -> None:
    """Raises UserError where Optuna is missing."""
    try:
        _ = optuna.create_study
    except ModuleNotFoundError as error:
        raise UserError(f"{error}: {imports.install('tune')}") from error


def load(base: Path, sampler: Any = None, pruner: Any = None, seed: int = 0) -> Any:
    """The study in a folder, or a new one."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log = base / LOG
    with metrics.JsonLines(log):  # removes a line that a killed process has cut short
        pass
    backend = optuna.storages.journal.JournalFileBackend(str(log))
    try:
        storage = optuna.storages.JournalStorage(backend)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{log}: damaged, or not a study of Optuna's ({error!r}): choose another folder"
        ) from error
    study = optuna.create_study(
        storage=storage,
        study_name=NAME,
        direction="maximize",
        load_if_exists=True,
        sampler=sampler or optuna.samplers.TPESampler(seed=seed),
        pruner=pruner or optuna.pruners.MedianPruner(),
    )
    if study.trials:  # or a resumed one would draw the values of its first trials again
        study.sampler.reseed_rng()
    return study


def table(study: Any, most: int = 10) -> list[str]:
    """The lines of a table: the best trials, those that have failed last."""

    def rank(trial: Any) -> tuple[bool, float]:
        return trial.value is None, -(trial.value or 0.0)

    told = _finished(study)
    names = [*dict.fromkeys(name for x in told for name in x.params)]
    lines = [("trial", "return", "steps", "state", *map(listing.printable, names))]
    for x in sorted(told, key=rank)[:most]:
        value = math.nan if x.value is None else x.value
        steps = "-" if x.last_step is None else f"{x.last_step:,}"
        values = [_shown(x.params.get(name)) for name in names]
        cells = name_of(x), human(value), steps, x.state.name.lower(), *values
        lines.append(tuple(map(listing.printable, cells)))
    return listing.aligned(lines)


def name_of(trial: Any) -> str:
    """Of a trial's folder. A study may come from anyone, and leads nowhere else."""
    name = trial.user_attrs.get(FOLDER)
    known = isinstance(name, str) and re.fullmatch(r"trial-\d{1,9}", name)
    return name if known else f"trial-{trial.number}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _begin(study: Any, config: Any, fields: Sequence[str], space: dict) -> None:
    """The first trial has the config's values. Raises UserError for other fields."""
    texts = json.dumps([*fields])
    before = study.user_attrs.setdefault(FIELDS, texts)
    if before != texts:
        raise UserError(
            f"tune.fields are {' '.join(fields)}, but this study searches "
            f"{' '.join(json.loads(before))}: leave them as they were, or choose another "
            "folder"
        )
    study.set_user_attr(FIELDS, texts)
    if not study.trials:
        study.enqueue_trial({name: getattr(config, name) for name in space})


def _retry_unfinished(study: Any) -> None:
    """Marks trials that a killed process left running as failed, and tries them again,
    as Optuna does."""
    trials = study.get_trials()
    retried = {x.user_attrs.get(RETRY_OF) for x in trials}
    for x in trials:
        if x.state != optuna.trial.TrialState.RUNNING:
            continue
        if x.number not in retried:
            about = {RETRY_OF: x.number, FOLDER: x.user_attrs.get(FOLDER)}
            study.enqueue_trial(x.params, user_attrs=about)
        study.tell(x.number, state=optuna.trial.TrialState.FAIL)


def _finished(study: Any) -> list[Any]:
    """The trials that have ended, but for those that were tried again."""
    trials = study.get_trials(deepcopy=False)
    retried = {x.user_attrs.get(RETRY_OF) for x in trials}
    return [x for x in trials if x.state.is_finished() and x.number not in retried]


def _train(
    study: Any,
    asked: Sequence[tuple[Any, Trial]],
    train: Train,
    stopped: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Trains the trials that a study was asked for, and tells it how they ended."""
    kept, trials = zip(*asked, strict=True)
    reports = _Reports(kept)
    try:
        train(trials, reports.add)
    except UserError as error:
        for x in kept:
            _fail(study, x, error, say)
        raise
    if stopped() and not reports.pruned:
        return  # the next process tries them again
    for x, trial, failure, mean in zip(
        kept, trials, reports.failures, reports.means(trials), strict=True
    ):
        if failure or math.isnan(mean):
            _fail(study, x, failure or ValueError("no episode has finished"), say)
            continue
        if reports.pruned:
            study.tell(x, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(x, mean)
        values = ", ".join(f"{name} {_shown(v)}" for name, v in trial.values.items())
        how = ", pruned" if reports.pruned else ""
        say(f"{trial.name}: mean return {human(mean)}{how}, with {values}")


def _fail(study: Any, trial: Any, error: Exception, say: Callable) -> None:
    trial.set_user_attr(ERROR, f"{error}")
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    say(f"{name_of(trial)}: failed: {error}")


class _Reports:
    """The rows of trials, and what Optuna's pruner says to them."""

    def __init__(self, asked: Sequence[Any]):
        self._asked = asked
        self._recent = [metrics.Recent() for _ in asked]
        self.failures: list[FloatingPointError | None] = [None for _ in asked]
        self.pruned = False

    def add(self, results: Sequence[Result]) -> bool:
        """Adds a result of each trial; returns whether all of them may end."""
        if self.pruned:
            return True
        for i, result in enumerate(results):
            if isinstance(result, FloatingPointError):
                self.failures[i] = self.failures[i] or result
            elif result and not self.failures[i]:
                self._recent[i].add(result)
                mean = self._recent[i].mean_return()
                if not math.isnan(mean):
                    self._asked[i].report(mean, int(result["steps"]))
        alive = [x for x, failure in zip(self._asked, self.failures) if not failure]
        # A trial of several that ends alone saves nothing, and its end is worth knowing.
        self.pruned = bool(alive) and all(x.should_prune() for x in alive)
        return self.pruned or not alive

    def means(self, trials: Sequence[Trial]) -> Iterator[float]:
        """The mean return of the last episodes of each, as its folder has it if it has any."""
        for trial, recent in zip(trials, self._recent, strict=True):
            path = trial.folder / run_folder.METRICS
            recorded = metrics.Recent(metrics.read(path)) if path.exists() else recent
            yield recorded.mean_return()
