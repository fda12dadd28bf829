"""Prioritized replay: which slots are sampled and how much they count, against numpy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.transformations import priorities

MANY = 20_000
sample = jax.jit(priorities.sample, static_argnames="count")
updated = jax.jit(priorities.updated)


def ring_of(masses) -> jax.Array:
    """Masses of a ring of that many slots."""
    empty = priorities.empty(len(masses))
    return empty.at[: len(masses)].set(jnp.asarray(masses, jnp.float32))


def counts_of(masses, filled, count=MANY):
    """How often each slot is sampled, of all that there are in the blocks."""
    slots = np.asarray(sample(jax.random.key(0), masses, filled, count))
    assert slots.min() >= 0
    return np.bincount(slots, minlength=masses.size)


def assert_in_proportion(counts, masses):
    """Chi-square, below 0.999 of its distribution: normal by Wilson and Hilferty."""
    expected = counts.sum() * np.float64(masses) / np.sum(masses, dtype=np.float64)
    assert not counts[expected == 0].any()
    there = expected > 0
    chi_square = np.sum((counts[there] - expected[there]) ** 2 / expected[there])
    freedom = there.sum() - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi_square < limit


@pytest.mark.parametrize("slots", [1, 2, 3, 17, 64, 100])
def test_slots_are_sampled_in_proportion_to_their_masses(slots):
    masses = np.random.default_rng(slots).exponential(size=slots) + 0.05
    counts = counts_of(ring_of(masses), slots)
    if slots == 1:
        assert counts.tolist() == [MANY]
    else:
        assert_in_proportion(counts[:slots], masses)


def test_after_insertions_that_wrap_around():
    """Masses and samples are those of a list in numpy, through 40 updates of a ring of 11."""
    random, slots, exponent, place, filled = np.random.default_rng(0), 11, 0.6, 0, 0
    masses, expected = priorities.empty(slots), np.zeros(slots)
    insert = jax.jit(priorities.with_new)
    for step in range(40):
        into = (place + np.arange(3)) % slots
        place, filled = (place + 3) % slots, min(filled + 3, slots)
        masses = insert(masses, into)
        expected[into] = expected.max() or 1.0
        learned = np.asarray(sample(jax.random.key(step), masses, filled, 4))
        priority = random.exponential(size=4).astype(np.float32)
        masses = updated(masses, learned, priority, exponent)
        for slot in {*learned}:  # the larger one of a slot that was sampled twice
            expected[slot] = priority[learned == slot].max() ** exponent
        np.testing.assert_allclose(masses[:slots], expected, rtol=1e-5)
    assert not masses[slots:].any()
    assert_in_proportion(counts_of(masses, filled)[:slots], expected)


@pytest.mark.parametrize("filled", [1, 2, 8, 9, 63, 64])
def test_only_slots_in_use_are_sampled(filled):
    masses = jnp.where(jnp.arange(64) < filled, 1.0, 0.0)
    counts = counts_of(masses, filled)
    assert counts[:filled].all() and not counts[filled:].any()


def test_rounding_samples_no_slot_that_is_not_in_use(monkeypatch):
    """As if a number were 1: it is the end of all sums, and past the last slot in use."""
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.ones(shape))
    masses = jnp.where(jnp.arange(64) < 21, 1.0, 0.0)
    assert priorities.sample(None, masses, 21, 3).tolist() == [20] * 3


def test_the_number_that_chooses_is_compared_with_the_sums():
    """Exactly: the first slot whose cumulative mass is above it, so never one of mass 0."""
    masses = jnp.float32([[1, 0, 2, 1]])
    numbers = np.float32([0, 0.24999, 0.25, 0.5, 0.74999, 0.75, 0.99999])
    chosen = priorities._chosen(jnp.asarray(numbers), masses)
    assert chosen.tolist() == [0, 0, 2, 2, 2, 3, 3]


def test_32_bits_tell_a_million_slots_apart():
    """The middle of each one's part of the sums stands for it, of blocks and inside of one;
    and the fiftieths of the whole, from the rarest to the most frequent, are as frequent."""
    slots = 10**6
    masses = np.float32(np.random.default_rng(0).exponential(size=slots) ** 2 + 1e-3)
    kept = ring_of(masses)
    blocks = kept.reshape(-1, 1024)
    sums = jnp.sum(blocks, axis=1)
    for row in (sums, blocks[500]):
        exact = np.float64(row)
        middles = (np.cumsum(exact) - exact / 2) / exact.sum()
        chosen = priorities._chosen(jnp.float32(middles), row[None])
        np.testing.assert_array_equal(chosen, np.arange(row.size))

    order = np.argsort(masses)
    until = np.cumsum(np.float64(masses[order]))
    edges = np.searchsorted(until, until[-1] * np.arange(1, 50) / 50)
    part = np.empty(slots, np.int64)
    part[order] = np.searchsorted(edges, np.arange(slots), "right")
    found = np.asarray(sample(jax.random.key(1), kept, slots, MANY))
    expected = np.bincount(part, masses, 50)
    assert_in_proportion(np.bincount(part[found], minlength=50), expected)


@pytest.mark.parametrize("importance", [0.0, 0.4, 1.0])
def test_importance_weights_are_the_papers(importance):
    """(N P(i))^-importance, divided by the largest of the batch."""
    masses = np.random.default_rng(0).exponential(size=50) + 0.01
    slots = np.random.default_rng(1).integers(0, 50, 12)
    expected = (50 * masses[slots] / masses.sum()) ** -importance
    weight = priorities.weights(jnp.float32(masses[slots]), importance)
    np.testing.assert_allclose(weight, expected / expected.max(), rtol=1e-5)
    assert weight.max() == 1.0


def test_full_weights_make_the_expectation_that_of_uniform_sampling():
    """Up to the factor that the largest weight of a batch is divided by."""
    random = np.random.default_rng(0)
    priority = random.exponential(size=16) + 0.2
    gradients = random.normal(size=16) + priority
    masses = ring_of(priority)  # exponent 1
    slots = sample(jax.random.key(0), masses, 16, 200_000)
    weight = priorities.weights(masses[slots], 1.0)
    means = [np.mean(x * weight) for x in (gradients[slots], 1.0)]
    np.testing.assert_allclose(means[0] / means[1], gradients.mean(), atol=0.02)
    assert abs(gradients[slots].mean() - gradients.mean()) > 0.2  # without weights


def test_a_slot_sampled_twice_keeps_the_larger_priority():
    masses = updated(
        ring_of([9.0, 9.0, 9.0, 9.0]),
        jnp.array([1, 3, 1, 3, 1]),
        jnp.float32([4, 1, 2, 16, 3]),
        0.5,
    )
    np.testing.assert_allclose(masses, [9, 2, 9, 4])


def test_new_trajectories_get_the_largest_mass():
    masses = priorities.with_new(priorities.empty(4), jnp.array([0, 1]))
    assert masses.tolist() == [1, 1, 0, 0]
    masses = updated(masses, jnp.array([0, 1]), jnp.float32([0.25, 0.5]), 1.0)
    masses = priorities.with_new(masses, jnp.array([2]))
    assert masses.tolist() == [0.25, 0.5, 0.5, 0]  # not the 1 that is no longer there


def test_no_priority_is_too_small_to_be_sampled():
    masses = updated(ring_of(2 * [1.0]), jnp.arange(2), jnp.float32([0.0, -1.0]), 0.6)
    assert (masses > 0).all()
    assert counts_of(masses, 2).all()
    assert np.isfinite(priorities.weights(masses, 1.0)).all()


def test_what_is_no_number_stays_so():
    """It ends in the weights, and by them in the loss, which stops the run: no sampling that
    looks as if it were uniform."""
    masses = updated(ring_of(4 * [1.0]), jnp.arange(2), jnp.float32([np.nan, 1]), 0.6)
    masses = priorities.with_new(masses, jnp.array([2]))
    assert np.isnan(masses[jnp.array([0, 2])]).all()
    slots = sample(jax.random.key(0), masses, 4, 100)
    assert np.isnan(priorities.weights(masses[slots], 0.4)).all()


def test_members_of_a_population_sample_by_masses_of_their_own():
    masses = jnp.stack([ring_of([1.0, 0, 0]), ring_of([1e-6, 1, 0])])
    keys, filled = jax.random.split(jax.random.key(0)), jnp.array([1, 2])
    slots = np.asarray(jax.vmap(partial(sample, count=50))(keys, masses, filled))
    assert (slots == [[0], [1]]).all()
