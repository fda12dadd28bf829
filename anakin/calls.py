"""Calls: many units inside one program, and what is counted in them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from podracer import parallel
from podracer.metrics import episodes, tally
from podracer.parallel import Average


def with_tally(state: Any, step: Callable) -> Any:
    """The state with an empty tally of the metrics of the unit `step`."""
    return state._replace(tally=tally.initial_state(jax.eval_shape(step, state)[1]))


def make_call(step: Callable, average: Average = parallel.AVERAGE) -> Callable:
    """(state, updates, report) -> (state, metrics, failures): iterates the unit `step`.

    The state has `updates`, `tally`, `episodes` and `counting(episodes, tally)`, which
    replaces these two, as `training.State` has.

    Metrics are means over cores and over the updates since the last call with `report`; of
    episodes they are sums, of which `episodes.means` makes means on the host. With `report`
    the count restarts; `failures` are the first of any core, see `tally`.
    """

    def call(state: Any, updates: jax.Array, report: jax.Array):
        def body(_, state):
            before = state.tally
            state, metrics = step(state._replace(tally=()))  # as `with_tally` traces it
            return state._replace(tally=tally.add(before, metrics, state.updates))

        with jax.named_scope("updates"):  # by which `podracer.plan` finds this loop
            state = jax.lax.fori_loop(jnp.uint32(0), updates, body, state)
        _, sums = episodes.collect(state.episodes)
        of_episodes = episodes.named(average.total(sums))
        metrics = average(tally.reported(state.tally.means)) | of_episodes
        failures = average.first(state.tally.failures)
        # Now, not in the next call: a resumed run may have its reports elsewhere.
        return restart(state, report), metrics, failures

    return call


def restart(state: Any, report: jax.Array) -> Any:
    """The state, its counts back at 0 if they were reported."""
    running, _ = episodes.collect(state.episodes)
    counted = state.episodes, state.tally
    counted = jax.tree.map(
        lambda nothing, so_far: jnp.where(report, nothing, so_far),
        (running, tally.initial_state(state.tally.means)),
        counted,
    )
    return state.counting(*counted)
