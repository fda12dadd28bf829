"""Targets of an unrolled model, against a slow loop over every boundary."""

import itertools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.learning import losses, model_targets

pytestmark = pytest.mark.core

FIRST, MID, LAST = (int(x) for x in dm_env.StepType)
T, K, N, ACTIONS = 5, 3, 2, 3
DISCOUNT = 0.9


def column(boundaries):
    """Step types and discounts [T + 1]: for each row M, F, E (terminated) or C (truncated)."""
    kinds = {"M": MID, "F": FIRST, "E": LAST, "C": LAST}
    return [kinds[x] for x in boundaries], [
        0.0 if x == "E" else 1.0 for x in boundaries
    ]


def legal(rows):
    """dm_env's order: FIRST follows LAST, and also MID where an episode is lost."""
    return all(
        (b == "F") if a in "EC" else (b != "F" or a == "M")
        for a, b in itertools.pairwise(rows)
    )


# Every sequence of rows: every position of every boundary, episodes of one step included.
COLUMNS = [x for x in itertools.product("MFEC", repeat=T + 1) if legal(x)]
B = len(COLUMNS)


def data():
    kinds, discounts = zip(*map(column, COLUMNS), strict=True)
    draw = np.random.default_rng(0)
    timesteps = dm_env.TimeStep(
        np.array(kinds).T,
        draw.normal(size=(T + 1, B)).astype(np.float32),
        np.array(discounts, np.float32).T,
        (),
    )
    action, other = draw.integers(0, ACTIONS, (2, T, B))
    policy = draw.dirichlet(np.ones(ACTIONS), (T + 1, B)).astype(np.float32)
    value = draw.normal(size=(T + 1, B)).astype(np.float32)
    return timesteps, action, other, policy, value


def slow_return(timesteps, value, t, b):
    """n rewards of the episode and a value, step by step."""
    kind, reward, discount = (x[:, b] for x in timesteps[:3])
    total, factor = 0.0, 1.0
    for _ in range(N):
        if kind[t] == LAST and discount[t] == 0.0:
            return total
        if t == T or kind[t] == LAST or kind[t + 1] == FIRST:
            return total + factor * value[t, b]
        t += 1
        total += factor * reward[t]
        factor *= DISCOUNT * discount[t]
    return total + (factor * value[t, b] if factor else 0.0)


def slow_unroll(timesteps, action, other, policy, value, t, b):
    """For each k: (known, over, action, reward, value, policy)."""
    kind, reward, discount = (x[:, b] for x in timesteps[:3])
    known, over = kind[t] != LAST, False
    rows = [(known, False, None, None, slow_return(timesteps, value, t, b), t)]
    for k in range(1, K + 1):
        here = t + k
        if over:
            rows.append((known, True, "other", 0.0, 0.0, None))
            continue
        if here > T or kind[here] == FIRST:
            known = False
        if not known:
            rows.append((False, False, None, None, None, None))
            continue
        over = kind[here] == LAST and discount[here] == 0.0
        found = slow_return(timesteps, value, here, b)
        rows.append((True, over, action[here - 1, b], reward[here], found, here))
    return rows


@jax.jit
def make(*trajectory):
    rows = model_targets.make_rows(*trajectory, discount_factor=DISCOUNT, steps=N)
    return rows, model_targets.unrolls(rows, K)


@pytest.fixture(scope="module")
def made():
    given = data()
    return given, *jax.device_get(make(*jax.tree.map(jnp.asarray, given)))


def test_all_boundaries_are_there():
    assert B == 255
    for t in range(T + 1):
        assert {x[t] for x in COLUMNS} == {*"MFEC"}


def test_returns_are_those_of_a_slow_loop(made):
    (timesteps, _, _, _, value), rows, _ = made
    slow = [
        [slow_return(timesteps, value, t, b) for b in range(B)] for t in range(T + 1)
    ]
    np.testing.assert_allclose(rows.value, slow, atol=1e-5)


def test_unrolls_are_those_of_a_slow_loop(made):
    (timesteps, action, other, policy, value), _, unrolls = made
    for t, b in itertools.product(range(T), range(B)):
        rows = slow_unroll(timesteps, action, other, policy, value, t, b)
        for k, (known, over, taken, reward, target, source) in enumerate(rows):
            assert unrolls.mask[k, t, b] == known, (COLUMNS[b], t, k)
            assert unrolls.policy_mask[k, t, b] == (known and not over)
            if not known:
                continue
            assert unrolls.value[k, t, b] == pytest.approx(target, abs=1e-5)
            if k:
                assert unrolls.reward[k, t, b] == pytest.approx(reward, abs=1e-6)
                if taken != "other":
                    assert unrolls.action[k, t, b] == taken
            if not over:
                np.testing.assert_array_equal(
                    unrolls.policy[k, t, b], policy[source, b]
                )


def test_actions_in_absorbing_states_are_the_random_ones(made):
    (_, _, other, _, _), _, unrolls = made
    for b, rows in enumerate(COLUMNS):
        for t in range(T):
            if rows[t] == "M" and rows[t + 1] == "E":
                for k in range(2, K + 1):
                    assert unrolls.action[k, t, b] == other[(t + k - 1) % T, b]


def test_what_is_unknown_has_no_influence(made):
    """Rewards and values of the next episode change nothing of this one."""
    given, rows, unrolls = made
    timesteps, *rest, value = given
    b = COLUMNS.index(("M", "M", "C", "F", "M", "M"))
    reward, other_value = timesteps.reward.copy(), value.copy()
    reward[3:, b] += 100.0
    other_value[3:, b] += 100.0
    timesteps = timesteps._replace(reward=reward)
    given = jax.tree.map(jnp.asarray, (timesteps, *rest, other_value))
    changed, after = jax.device_get(make(*given))
    np.testing.assert_array_equal(changed.value[:3, b], rows.value[:3, b])
    seen = unrolls.mask[:, :2, b] > 0
    np.testing.assert_array_equal(after.mask[:, :2, b] > 0, seen)
    np.testing.assert_array_equal(
        np.where(seen, after.value[:, :2, b], 0),
        np.where(seen, unrolls.value[:, :2, b], 0),
    )


def test_n_step_returns_have_the_published_values():
    """Spec C2, rlax's: r and d of five transitions, v of the rows after them."""
    between = losses.Transitions(
        jnp.float32([1, 0, 2, 0, 1])[:, None],
        jnp.float32([0.9, 0.9, 0, 0.9, 0.9])[:, None],
        jnp.ones((5, 1)),
    )
    values = jnp.float32([0, 10, 20, 30, 40, 50])[:, None]
    for steps, expected in (
        (2, [17.2, 1.8, 2, 41.4, 46]),
        (3, [2.62, 1.8, 2, 41.4, 46]),
    ):
        got = model_targets.n_step_returns(between, values, steps)
        np.testing.assert_allclose(got[:-1, 0], expected, rtol=1e-6)
