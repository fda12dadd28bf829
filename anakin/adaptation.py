"""Population based training: weak members copy strong ones (Jaderberg et al. 2017,
arXiv:1711.09846).

At intervals, in the program, each member has a score: its mean return since the last
one. A rule says which members copy another's learner, and with which hyperparameters
each of them continues. A member's environments, keys and replay are its own.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer import imports
from podracer.agent import Key, Metrics
from podracer.command import spaces
from podracer.errors import UserError, check_at_least_one, check_range
from podracer.parallel import MEMBERS

Hyperparameters = dict[str, jax.Array]  # float32 [S] by name
# (key, scores [S], hyperparameters) -> (parents [S], hyperparameters); see `truncation`
Rule = Callable[[Key, jax.Array, Hyperparameters], tuple[jax.Array, Hyperparameters]]
NOBODY = -1  # in the place of a parent
# In the place of an update's number in a run's random numbers, which no run reaches.
OF_RULE, OF_NEW_ACTORS = 2**32 - 1, 2**32 - 2


@dataclasses.dataclass(frozen=True)
class Config:
    """When a population adapts, which hyperparameters, and how."""

    interval: int | None = None
    """environment steps of a member between two adaptations, rounded up to whole reports;
    default: a twentieth of the run. After the last adaptation a whole one follows"""
    fields: tuple[str, ...] = ()
    """the agent's hyperparameters that differ, each with its range, which is on a logarithmic
    scale where it is above 0: learning-rate=1e-5..1e-2"""
    exploit: bool = True
    """let worse members take over the learners of better ones; without it every member keeps
    its learner and its hyperparameters: random search, the control"""
    fraction: float = 0.25
    """share of the members that take over a learner, and of the best that it is drawn from"""
    perturbation: float = 0.05
    """share of its range, on its scale, by which a hyperparameter moves up or down"""
    resample: float = 0.25
    """probability that it is drawn anew from its range instead"""
    rule: str | None = None
    """MODULE:FUNCTION in place of truncation selection: (key, scores, hyperparameters, these
    flags) -> (parents, hyperparameters)"""

    def __post_init__(self):
        check_at_least_one(**{"pbt.interval": self.interval})
        check_range("pbt.fraction", self.fraction, 0.0, 0.5)
        check_range("pbt.perturbation", self.perturbation, 0.0, 1.0)
        check_range("pbt.resample", self.resample, 0.0, 1.0)
        _ = self.ranges

    @property
    def ranges(self) -> dict[str, spaces.Range]:
        """Of `fields`, by name. Raises UserError."""
        return spaces.ranges(self.fields, "pbt.fields")


class Adaptation(NamedTuple):
    """How and when a population adapts."""

    rule: Rule
    steps: int  # environment steps of a member between two adaptations


class Updates(NamedTuple):
    """When a population adapts, in updates."""

    interval: int  # after each of which it does
    last: int  # and not after more than these, so that a whole interval follows

    def are_due(self, done: jax.Array) -> jax.Array:
        """Whether a population adapts after `done` updates, uint32 []."""
        return (done > 0) & (done % self.interval == 0) & (done <= self.last)

    def number(self, done: jax.Array) -> jax.Array:
        """The number of adaptations before the last of `done` updates, uint32 []."""
        return jnp.minimum(done - 1, jnp.uint32(self.last)) // self.interval


def of_flags(config: Any) -> Adaptation | None:
    """What `anakin train` is asked for, if it is. Raises UserError."""
    config, total_steps = config.pbt, config.total_steps
    if not (config.fields and config.exploit):
        return None
    rule = imports.resolve(config.rule, "--pbt.rule") if config.rule else truncation
    if not callable(rule):
        raise UserError(
            f"--pbt.rule: {config.rule} is {type(rule).__name__}; it must be a function of "
            "(key, scores, hyperparameters, config)"
        )
    interval = config.interval or math.ceil(total_steps / 20)
    return Adaptation(partial(rule, config=config), interval)


def truncation(
    key: Key, scores: jax.Array, hyperparameters: Hyperparameters, config: Config
) -> tuple[jax.Array, Hyperparameters]:
    """Truncation selection (arXiv:1711.09846, section 4.1): the worst copy the best.

    A member that copies a learner perturbs each of its parent's hyperparameters up or
    down, or resamples it. All members that failed copy; one without a score neither
    copies nor is copied.

    Args:
      key: random numbers.
      scores: float32 [S], mean returns since the last adaptation: NaN where no episode has
        finished, -inf where the member has failed.
      hyperparameters: float32 [S] by name.
      config: which share is exchanged, and how far hyperparameters move.

    Returns:
      Each member's parent, int32 [S], itself where it keeps its own learner, and all
      hyperparameters.
    """
    members = jnp.arange(scores.shape[0], dtype=jnp.int32)
    best_first = jnp.argsort(-scores).astype(jnp.int32)  # NaN last
    rank = jnp.argsort(best_first)
    known, alive = jnp.sum(~jnp.isnan(scores)), jnp.sum(jnp.isfinite(scores))
    count = jnp.maximum(1, config.fraction * known).astype(jnp.int32)
    bad = (rank >= known - count) | (scores == -jnp.inf)
    draw_key, explore_key = jax.random.split(key)
    drawn = jax.random.randint(
        draw_key, members.shape, 0, jnp.maximum(1, jnp.minimum(count, alive))
    )
    best = best_first[drawn]
    takes = bad & (scores[best] > scores)  # false for NaN, and where all are as good
    parents = jnp.where(takes, best, members)
    return parents, explored(explore_key, takes, parents, hyperparameters, config)


def explored(
    key: Key,
    takes: jax.Array,
    parents: jax.Array,
    hyperparameters: Hyperparameters,
    config: Config,
) -> Hyperparameters:
    """All hyperparameters [S]; those of members in `takes`, bool [S], are perturbed
    from their parents' or resampled."""
    changed = {}
    for i, (name, space) in enumerate(config.ranges.items()):
        keys = jax.random.split(jax.random.fold_in(key, i), 3)
        is_up, is_new = (
            jax.random.bernoulli(keys[j], p, takes.shape)
            for j, p in enumerate((0.5, config.resample))
        )
        inherited = hyperparameters[name][parents]
        moved = space.place(inherited) + jnp.where(is_up, 1, -1) * config.perturbation
        new = jax.random.uniform(keys[2], takes.shape)
        value = jnp.clip(space.at(jnp.where(is_new, new, moved)), *space)
        changed[name] = jnp.where(takes, value, hyperparameters[name])
    return hyperparameters | changed


class Standing(NamedTuple):
    """A member since the last adaptation."""

    parent: jax.Array  # int32 [], the member whose learner it took then, or NOBODY
    finished: jax.Array  # float32 [], episodes
    return_sum: jax.Array  # float32 [], of them
    failed: jax.Array  # bool [], a metric was not finite


def initial_standing(parent: int | jax.Array = NOBODY) -> Standing:
    """Before its first episode."""
    parent = jnp.asarray(parent, jnp.int32)
    return Standing(parent, jnp.float32(0.0), jnp.float32(0.0), jnp.bool_(False))


def counted(standing: Standing, metrics: Metrics, failures: Metrics) -> Standing:
    """A member's standing after a report, whose metrics of episodes are sums."""
    failed = jnp.any(jnp.stack([jnp.any(x > 0) for x in jax.tree.leaves(failures)]))
    return Standing(
        standing.parent,
        standing.finished + metrics["episodes"],
        standing.return_sum + metrics["episode_return"],
        standing.failed | failed,
    )


def scores(standing: Standing) -> jax.Array:
    """[S] of the members' standings [S], see `truncation`."""
    mean = standing.return_sum / jnp.maximum(standing.finished, 1.0)
    mean = jnp.where(standing.finished > 0, mean, jnp.nan)
    return jnp.where(standing.failed, -jnp.inf, mean)


def adapt(rule: Rule, begin: Callable, population: Any) -> Any:
    """The members after an adaptation: a core's, which are [S / cores, ...].

    A member that failed copies the learner of another. Its actors and its local state
    (replay) may hold NaN, too: both start afresh.

    Args:
      rule: see `Rule`.
      begin: (key, hyperparameters, index [B]) -> a member's first state.
      population: a `Population` with a standing.
    """
    state, hyperparameters, standing = population
    keys, of_all, changed = MEMBERS.gather(
        (state.key, scores(standing), hyperparameters)
    )
    chosen = rule(_key(keys[0], OF_RULE, state.updates[0]), of_all, changed)
    parents, changed = _checked(chosen, of_all.shape, changed)
    took = jnp.where(parents == jnp.arange(parents.shape[0]), NOBODY, parents)
    parents, took, hyperparameters = MEMBERS.share((parents, took, changed))
    learners = MEMBERS.gather(state.learner.shared)
    learner = state.learner._replace(
        shared=jax.tree.map(lambda x: x[parents], learners)
    )
    each = partial(_key, word=OF_NEW_ACTORS)
    fresh = jax.vmap(begin)(
        jax.vmap(each)(state.key, updates=state.updates),
        hyperparameters,
        state.actors.index,
    )
    local = jax.tree.map(lambda x: x[:, None], fresh.learner.local)  # as over_members
    own = _where(
        standing.failed,
        (local, fresh.actors),
        (learner.local, state.actors),
    )
    state = state._replace(learner=learner._replace(local=own[0]), actors=own[1])
    standing = jax.vmap(initial_standing)(took)
    return type(population)(state, hyperparameters, standing)


def _checked(
    chosen: Any, shape: tuple[int], before: Hyperparameters
) -> tuple[jax.Array, Hyperparameters]:
    """What a rule returns. Raises UserError where it is something else."""
    try:
        parents, changed = chosen
        kinds = {name: jnp.shape(x) for name, x in changed.items()}
        is_right = jnp.shape(parents) == shape and parents.dtype == jnp.int32
    except (TypeError, ValueError, AttributeError):
        is_right, kinds = False, {}
    if not is_right or kinds != {name: x.shape for name, x in before.items()}:
        found = jax.tree.map(jax.typeof, chosen)
        raise UserError(
            f"the rule of the population gives {found}; it must give parents, int32 "
            f"{[*shape]}, and {', '.join(before)}, float32 {[*shape]}"
        )
    members = jnp.arange(shape[0], dtype=jnp.int32)
    there = (parents >= 0) & (parents < shape[0])  # else it keeps its own
    parents = jnp.where(there, parents, members)
    return parents, {name: jnp.asarray(x, jnp.float32) for name, x in changed.items()}


def _key(key: Key, word: int, updates: jax.Array) -> Key:
    return jax.random.fold_in(jax.random.fold_in(key, jnp.uint32(word)), updates)


def _where(condition: jax.Array, then: Any, otherwise: Any) -> Any:
    """Of members [S, ...], those of one tree where `condition` [S], else of the other."""
    return jax.tree.map(
        lambda x, y: jnp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y),
        then,
        otherwise,
    )
