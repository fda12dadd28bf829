"""Means of metrics over updates, whatever their dtypes and their number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agent import FAILED
from podracer.errors import UserError
from podracer.metrics import tally


def mean_of(values, updates):
    """The mean over updates 1 to `updates` of what `values(update)` gives."""

    def body(update, counted):
        return tally.add(counted, {"x": values(update)}, jnp.uint32(update))

    empty = tally.initial_state({"x": jax.eval_shape(values, 1)})
    run = jax.jit(lambda empty: jax.lax.fori_loop(1, updates + 1, body, empty))
    return float(run(empty).means["x"])


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (lambda update: jnp.bool_(update % 4 > 0), 0.75),
        (lambda update: jnp.int32(1_000_000 + update % 2), 1_000_000.5),
        (lambda update: jnp.uint8(200), 200.0),
        (lambda update: jnp.bfloat16(0.5), 0.5),
    ],
)
def test_flags_and_counts_have_means(values, mean):
    """In their own dtypes, 4,000 of them would overflow or be one flag."""
    assert mean_of(values, 4_000) == pytest.approx(mean)


def test_a_mean_does_not_drift_with_the_number_of_updates():
    """A float32 sum of a million constants is off by a hundredth."""
    assert mean_of(lambda update: jnp.float32(1000.1), 1_000_000) == np.float32(1000.1)
    alternating = mean_of(lambda update: jnp.float32(1000 + update % 2), 1_000_000)
    assert alternating == pytest.approx(1000.5, rel=1e-6)


def test_a_learner_names_its_failure():
    """The run stops with its words, and no row has that metric."""
    name = FAILED + "a target is too large: raise limit"
    counted = tally.initial_state({name: jnp.float32(0), "loss": jnp.float32(0)})
    for update, flag in ((1, 0.0), (2, 0.5), (3, 1.0)):  # 0.5: of two cores, one failed
        metrics = {name: jnp.float32(flag), "loss": jnp.float32(3.0)}
        counted = tally.add(counted, metrics, jnp.uint32(update))
        if flag == 0.0:
            tally.stop_if_not_finite(counted.failures)
    assert tally.reported(counted.means) == {"loss": 3.0}
    with pytest.raises(
        FloatingPointError, match="^update 2: a target is too large: ra"
    ):
        tally.stop_if_not_finite(counted.failures)


def test_of_several_elements_the_first_that_failed_is_named():
    name = FAILED + "too large: x"
    counted = tally.initial_state({name: jnp.zeros((2, 3))})
    for update, element in ((1, None), (2, (1, 2)), (3, (0, 1))):
        flags = np.zeros((2, 3), np.float32)
        if element:
            flags[element] = 1.0
        counted = tally.add(counted, {name: flags}, jnp.uint32(update))
    line = r"^update 2: too large: x\[1, 2\] \("
    with pytest.raises(FloatingPointError, match=line):
        tally.stop_if_not_finite(counted.failures)


@pytest.mark.parametrize("name", ["reward", "steps", "lag_mean"])
def test_a_metric_that_a_run_would_replace_is_refused(name):
    given = {"observation": jnp.float32(0), "reward": jnp.float32(1)}
    assert tally.joined({"loss/total": 2.0}, given) == given | {"loss/total": 2.0}
    with pytest.raises(UserError, match=f"metrics have '{name}', which a run measures"):
        tally.joined({name: jnp.float32(7)}, given)
