"""Many runs in one program: whole learners side by side, divided over the cores.

Up to rounding, each run is what it would be alone on one core; nothing is averaged. With an
`adaptation` they are a population whose members take over the learners of better ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from anakin import adaptation
from anakin.adaptation import Adaptation, Rule, Standing, Updates
from anakin.calls import make_call, with_tally
from anakin.checks import check, check_played, in_one_line
from anakin.reports import Reports, begin, iterate, make_reports
from anakin.training import LAYOUT, Programs, State, initial_state, make_step
from envs_jax.environment import Environment
from envs_jax.wrappers import batched
from podracer import kernels, parallel
from podracer.agent import Agent
from podracer.errors import UserError, check_at_least_one, check_seed
from podracer.metrics import episodes, tally
from podracer.parallel import SHARED, cpu, hosts

Row = dict[str, float] | FloatingPointError


class Population(NamedTuple):
    """The state of S runs. Other hyperparameters need no new compilation."""

    state: State  # [S, ...]
    hyperparameters: dict[str, jax.Array]  # float32 [S], those in which the runs differ
    standing: Standing | tuple[()] = ()  # [S] of each, where they adapt


class Member(NamedTuple):
    """The state of one run of a population that adapts: a `State`, and what changes it."""

    learner: Any
    actors: Any
    key: Any
    updates: jax.Array
    tally: Any
    hyperparameters: dict[str, jax.Array]  # float32 []
    standing: Standing


def train(
    make_agent: Callable[[Mapping[str, jax.Array]], Agent],
    environment: Environment,
    *,
    seeds: Sequence[int],
    hyperparameters: Mapping[str, Sequence[float]] | None = None,
    batch_size: int,
    unroll_length: int,
    total_steps: int,
    updates_per_report: int | None = None,
    cores: int | None = None,
    reset_pool: int | None = None,
    adapt: Adaptation | None = None,
    restore: Callable[[list[State], State], Sequence[State]] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Population, list[Row | None] | None]]:
    """Trains S runs at once; yields (population, rows) at each report.

    `member(population, i)` is the state of run i; rows are a row of metrics for each run, or
    None between two reports. Once a metric of a run is not finite, a FloatingPointError takes
    the place of its rows, and the other runs go on. Where these end between two reports, rows
    are the errors, and None for the others.

    Args:
      make_agent: (a run's hyperparameters, which are traced) -> its agent.
      environment: a single episode, as for `anakin.train`.
      seeds: [S], each run's random seed; S is a multiple of the number of cores.
      hyperparameters: [S] floats by name: those in which the runs differ.
      batch_size, unroll_length, total_steps: of each run.
      updates_per_report, reset_pool, stopped: as for `anakin.train`.
      cores: number of cores of each host; default: all.
      adapt: when and how the runs take over one another's learners and hyperparameters, see
        `adaptation`; each interval ends with a report. Rows have the number of their interval
        as `population/interval`, the run whose learner was taken at its start as
        `population/parent` (-1: none was), and `population/NAME` of each hyperparameter. A
        failed run goes on with the learner of another. By default each run is alone.
      restore: (initial states of this host's runs, the `LAYOUT` of each) -> those to resume
        from, after equal numbers of updates. On as many cores they resume bit for bit.

    Raises:
      UserError: an argument is impossible, or a hyperparameter cannot differ between runs.
      FloatingPointError: at the end, where runs have failed; names each.
    """
    kernels.install()
    mesh = parallel.make_mesh(cores)
    values = _checked(seeds, hyperparameters or {})
    check_shares(len(seeds), mesh.size, "population" if adapt else "seeds")
    cpu.check_threads(mesh.local_devices)
    check(environment, batch_size, unroll_length, total_steps, 1, reset_pool)
    check_played(environment)
    steps = batch_size * unroll_length
    reports, how = in_step(steps, total_steps, updates_per_report, adapt)
    programs = make_programs(
        make_agent, environment, mesh, unroll_length, reset_pool, how
    )
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    try:
        with in_one_line():
            population, compile = begin(programs, keys, values, number=batch_size)
    except jax.errors.ConcretizationTypeError as error:
        raise UserError(
            f"{', '.join(values)}: one of these decides what is compiled and cannot "
            "differ between runs of one program: train its values in separate runs"
        ) from error
    done = 0
    if restore:
        population = restored(population, restore)
        done = int(jnp.max(population.state.updates))
    failed: dict[int, FloatingPointError] = {}

    def ends() -> bool:
        return len(failed) == len(seeds) or stopped()

    read = partial(_rows, failed, adapt is not None)
    runs = iterate(compile, population, done, reports, ends, read)
    return _with_failures(runs, failed, seeds)


def _checked(
    seeds: Sequence[int], hyperparameters: Mapping[str, Sequence[float]]
) -> dict[str, jax.Array]:
    """The hyperparameters as arrays [S]. Raises UserError for a seed or another shape."""
    for seed in seeds:
        check_seed(seed)
    for name, x in hyperparameters.items():
        if np.shape(x) != (len(seeds),):
            raise UserError(
                f"hyperparameters[{name!r}] is {x}; it must have one number for each of "
                f"the {len(seeds)} seeds"
            )
    return {name: jnp.asarray(x, jnp.float32) for name, x in hyperparameters.items()}


def in_step(
    steps: int,
    total_steps: int,
    updates_per_report: int | None,
    adapt: Adaptation | None,
) -> tuple[Reports, tuple[Rule, Updates] | None]:
    """The reports of runs with `steps` an update, and the rule with the updates after which
    they adapt, each time at a report."""
    reports = make_reports(steps, total_steps, updates_per_report)
    if not adapt:
        return reports, None
    least = -(-adapt.steps // steps)
    count = -(-least // reports.updates)  # reports between two adaptations
    if updates_per_report is None:  # which would make the interval longer than need be
        reports = reports._replace(updates=-(-least // count))
    interval = count * reports.updates
    last = max(0, reports.total_updates - interval)
    return reports, (adapt.rule, Updates(interval, last))


def rule_of(config: Any) -> tuple[Rule, Updates] | None:
    """The same rule and updates for the flags of `anakin train`."""
    steps = config.batch_size * config.unroll_length
    total_steps, updates = config.total_steps, config.updates_per_report
    return in_step(steps, total_steps, updates, adaptation.of_flags(config))[1]


def _rows(
    failed: dict[int, FloatingPointError], adapts: bool, metrics: Any, failures: Any
) -> list[dict[str, float]]:
    """The metrics of each run. Adds to `failed` the runs in which one is not finite.

    Where a population adapts, those are taken out that are finite again.
    """
    metrics, failures = parallel.everywhere((metrics, failures))
    numbers = range(len(next(iter(metrics.values()))))
    for i in numbers:
        if i in failed and not adapts:
            continue
        try:
            tally.stop_if_not_finite({name: x[i] for name, x in failures.items()})
            failed.pop(i, None)
        except FloatingPointError as error:
            failed.setdefault(i, error)
    rows = [{name: float(x[i]) for name, x in metrics.items()} for i in numbers]
    return [episodes.means(row) for row in rows]


def _with_failures(
    runs: Iterator, failed: Mapping[int, FloatingPointError], seeds: Sequence[int]
) -> Iterator:
    """The same reports, with the errors of runs in place of their rows; then raises them."""
    for population, rows in runs:
        if failed:  # reported, too, where the others end between two reports
            rows = rows or [None] * len(seeds)
            rows = [failed.get(i, row) for i, row in enumerate(rows)]
        yield population, rows
    if failed:
        raise FloatingPointError(
            "; ".join(f"run {i} (seed {seeds[i]}), {failed[i]}" for i in sorted(failed))
        )


def check_shares(runs: int, cores: int, name: str = "seeds") -> None:
    """Raises UserError where cores cannot share the runs equally; `name` is their field."""
    check_at_least_one(**{name: runs})
    if runs % cores:
        raise UserError(
            f"{name} are {runs} runs, which {cores} cores cannot share equally: choose a "
            f"multiple of {cores}, or other cores"
        )


def make_programs(
    make_agent: Callable,
    environment,
    mesh,
    unroll_length: int,
    reset_pool: int | None,
    adapt: tuple[Rule, Updates] | None = None,
) -> Programs:
    """The programs of S runs: (keys [S], hyperparameters, index [B]) -> Population, and
    (population, updates, report) -> ..., see `make_call`.

    With `adapt`, a rule and when, a call that is due begins with it: the state that a report
    came from is the one that can be saved.
    """
    environment = batched(environment, reset_pool)

    @partial(jax.jit, inline=True)  # traced once for both programs
    def unit(hyperparameters, state):
        agent = make_agent(hyperparameters)
        return make_step(agent, environment, unroll_length)(state)

    def begin(key, hyperparameters, index):
        return initial_state(key, index, make_agent(hyperparameters), environment)

    def start(key, hyperparameters, index):
        state = begin(key, hyperparameters, index)
        state = with_tally(state, partial(unit, hyperparameters))
        standing = adaptation.initial_standing() if adapt else ()
        return Population(state, hyperparameters, standing)

    def call(population, updates, report):
        state, hyperparameters, standing = population
        results = make_call(partial(unit, hyperparameters))(state, updates, report)
        state, metrics, failures = results
        if adapt:
            interval = adapt[1].number(state.updates)
            told = {"interval": interval, "parent": standing.parent, **hyperparameters}
            after = adaptation.counted(standing, metrics, failures)
            standing = jax.tree.map(partial(jnp.where, report), after, standing)
            metrics |= {f"population/{name}": x for name, x in told.items()}
        return Population(state, hyperparameters, standing), metrics, failures

    def before(population, updates, report):
        if adapt:
            rule, when = adapt
            population = jax.lax.cond(
                when.are_due(population.state.updates[0]),
                partial(adaptation.adapt, rule, begin),
                lambda as_it_is: as_it_is,
                population,
            )
        return population, updates, report

    layout = Population(LAYOUT, SHARED, SHARED)
    return Programs(
        parallel.over_members(
            start, mesh, (SHARED, SHARED, parallel.BATCH), layout, (True, True, False)
        ),
        parallel.over_members(
            call,
            mesh,
            (layout, SHARED, SHARED),
            (layout, SHARED, SHARED),
            (True, False, False),
            donate=(0,),
            before=before,
        ),
    )


def restored(population: Population, restore: Callable) -> Population:
    """The population with the states of `restore`, see `train`, where its own lie."""
    numbers = hosts.share(len(population.state.updates))
    members = [member(population, i) for i in numbers]
    layout = Member(*LAYOUT, SHARED, SHARED) if population.standing else LAYOUT
    states = restore(members, layout)
    whole = parallel.of_members(states, like=_unpacked(population))
    if not population.standing:
        return population._replace(state=whole)
    return Population(State(*whole[:-2]), *whole[-2:])


def member(population: Population, number: int) -> State | Member:
    """The state of one run, as `anakin.train` on one core has it, and more if it adapts.

    With several hosts each has its own runs, `podracer.parallel.hosts.share(S)`. Raises
    IndexError for one of another host.
    """
    return parallel.of_member(_unpacked(population), number)


def _unpacked(population: Population) -> State | Member:
    state, hyperparameters, standing = population
    return Member(*state, hyperparameters, standing) if standing else state
