"""Means of metrics, computed on the device, and the first update that failed.

An update fails where a metric is not finite, or where a learner says so: a metric
`FAILED + MESSAGE` above 0 stops the run with that message. It is in no row, and may be an
array, of which the message names the first element that is above 0.
"""

from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import FAILED, Metrics
from podracer.errors import UserError
from podracer.metrics.vocabulary import OF_RUNS

# The cause of a value that is not finite, where what the environment gives tells it.
CAUSES = {
    "observation": "the environment gives an observation that is not finite",
    "reward": "the environment gives a reward that is not finite",
}


class Tally(NamedTuple):
    """Means over updates; their memory does not grow with the number of updates."""

    means: Metrics  # float32, whatever dtypes the agent's metrics have
    count: jax.Array  # uint32 []
    failures: Metrics  # uint32 [] the first update, from 1, that failed; 0: none


def initial_state(metrics: Metrics) -> Tally:
    """An empty tally for metrics of these shapes (arrays or jax.ShapeDtypeStructs)."""
    return Tally(
        jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), metrics),
        jnp.uint32(0),
        jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.uint32), metrics),
    )


def of_environment(timesteps: dm_env.TimeStep) -> Metrics:
    """Means of observations and rewards, to recognize an environment that gives NaN."""
    numbers = [
        jnp.mean(x)
        for x in jax.tree.leaves(timesteps.observation)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    return {
        "observation": sum(numbers, jnp.float32(0.0)) / max(1, len(numbers)),
        "reward": jnp.mean(timesteps.reward),
    }


def joined(of_agent: Metrics, of_environment: Metrics) -> Metrics:
    """All metrics of an update. Raises UserError for an agent's that a run would replace."""
    for name in sorted(of_agent.keys() & OF_RUNS):
        raise UserError(
            f"the agent's metrics have {name!r}, which a run measures itself: choose "
            "another name"
        )
    return of_agent | of_environment


def as_floats(metrics: Metrics) -> Metrics:
    """Flags and counts too: sums and means of them would overflow or be rounded."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), metrics)


def add(tally: Tally, metrics: Metrics, update: jax.Array) -> Tally:
    """Adds the metrics of an update; updates are counted from 1."""
    metrics, count = as_floats(metrics), tally.count + 1
    share = 1.0 / count.astype(jnp.float32)

    def first_failure(name):
        first, x = tally.failures[name], metrics[name]
        failed = ~jnp.isfinite(x) | (name.startswith(FAILED) & (x > 0.0))
        return jnp.where((first == 0) & failed, update, first)

    return Tally(
        # A running mean: the rounding errors of a sum would grow with the updates.
        jax.tree.map(lambda mean, x: mean + (x - mean) * share, tally.means, metrics),
        count,
        {name: first_failure(name) for name in metrics},
    )


def reported(means: Metrics) -> Metrics:
    """Those of a tally's means that belong into a row."""
    return {name: x for name, x in means.items() if not name.startswith(FAILED)}


def stop_if_not_finite(failures: Metrics) -> None:
    """Raises FloatingPointError, naming the first update that failed and its metrics."""
    failures = {name: np.asarray(x) for name, x in failures.items()}
    firsts = {name: x[x > 0].min() for name, x in failures.items() if x.any()}
    if firsts:
        update = min(firsts.values())
        terms = [name for name, first in firsts.items() if first == update]
        known = [CAUSES[name] for name in CAUSES if name in terms]
        known += [_message(x, failures[x]) for x in terms if x.startswith(FAILED)]
        unknown = f"{', '.join(terms)} not finite: try a smaller learning rate"
        raise FloatingPointError(
            f"update {update}: {'; '.join(known) or unknown} (what was recorded before is "
            "good)"
        )


def _message(name: str, failures: np.ndarray) -> str:
    """Of a metric that begins with `FAILED`, with the index of the first element to fail."""
    first = np.where(failures > 0, failures, np.inf).argmin()
    index = map(int, np.unravel_index(first, failures.shape))
    return name.removeprefix(FAILED) + (f"{[*index]}" if failures.ndim else "")
