"""V-trace against published values, rlax, and a slow loop; masks; reward clipping."""

import os
import subprocess
import sys

import dm_env
import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from podracer import parallel
from podracer.learning import losses

FIRST, MID, LAST = dm_env.StepType
INF = float("inf")


def between(reward, discount):
    return losses.Transitions(
        jnp.array(reward), jnp.array(discount), jnp.ones_like(jnp.array(reward))
    )


def column(values):
    return jnp.array(values, jnp.float32)[:, None]


@pytest.mark.parametrize(
    ("clip_rho", "clip_pg_rho", "target", "advantage"),
    [
        (1.0, 1.0, [1.0, 0.0, 3.047, 2.83], [0.5, -1.0, 3.297, 2.08]),
        (INF, INF, [2.4, 0.0, 3.40325, 2.83], [1.0, -1.0, 4.12125, 2.08]),
        (1.5, 1.1, [1.7, 0.0, 3.40325, 2.83], [0.55, -1.0, 3.6267, 2.08]),
    ],
)
def test_vtrace_by_hand(clip_rho, clip_pg_rho, target, advantage):
    values = column([0.5, 1.0, -0.25, 0.75, 1.5])
    got = losses.vtrace(
        values[:-1],
        values[1:],
        between(column([1, -1, 0.5, 2]), column([0.9, 0, 0.9, 0.9])),
        column([2, 0.5, 1.25, 0.8]),
        clip_rho=clip_rho,
        clip_pg_rho=clip_pg_rho,
    )
    np.testing.assert_allclose(got.target[:, 0], target, atol=1e-5)
    np.testing.assert_allclose(got.advantage[:, 0], advantage, atol=1e-5)


def test_vtrace_of_torchbeasts_own_test():
    """The numbers that TorchBeast's vtrace_test.py computes from its formula."""
    i, b = np.meshgrid(np.arange(5.0), np.arange(5.0), indexing="ij")
    n = i * 5 + b  # TorchBeast counts through the matrix
    log_rho = 5 * (n / 25 - 0.5)
    discount = np.broadcast_to(0.9 / (np.arange(5) + 1), (5, 5))
    values = np.concatenate([n / 5, [np.arange(5) + 1.0]])
    got = losses.vtrace(
        jnp.float32(values[:-1]),
        jnp.float32(values[1:]),
        between(jnp.float32(n), jnp.float32(discount)),
        jnp.exp(jnp.float32(log_rho)),
        clip_rho=3.7,
        clip_pg_rho=2.2,
    )
    np.testing.assert_allclose(
        got.target[0],
        [0.9298155261, 0.5564374325, 0.8168945633, 1.1897671432, 1.6549954777],
        atol=1e-5,
    )
    np.testing.assert_allclose(
        got.target[4], [66.53, 69.69, 72.85, 76.01, 79.17], rtol=1e-5
    )
    np.testing.assert_allclose(
        got.advantage[4], [37.18, 38.94, 40.70, 42.46, 44.22], rtol=1e-5
    )
    np.testing.assert_allclose(
        got.advantage[0],
        [0.9298155261, 0.3564374325, 0.4168945633, 0.5897671432, 0.8549954777],
        atol=1e-5,
    )


def slow_vtrace(values, reward, discount, rho, clip_rho, clip_c, clip_pg_rho):
    """The recursion of the paper, backwards in float64."""
    steps, batch = reward.shape
    target = np.array(values)
    for b in range(batch):
        trace = 0.0
        for t in reversed(range(steps)):
            error = reward[t, b] + discount[t, b] * values[t + 1, b] - values[t, b]
            trace = min(clip_rho, rho[t, b]) * error + (
                discount[t, b] * min(clip_c, rho[t, b]) * trace
            )
            target[t, b] = values[t, b] + trace
    q = reward + discount * target[1:]
    return target[:-1], np.minimum(clip_pg_rho, rho) * (q - values[:-1])


def arrays(low, high, rows):
    return hnp.arrays(np.float32, (rows, 3), elements=st.floats(low, high, width=16))


clips = st.sampled_from([0.5, 1.0, 1.75, INF])


@hypothesis.settings(deadline=None, max_examples=30, derandomize=True)
@hypothesis.given(
    values=arrays(-4, 4, 6),
    reward=arrays(-4, 4, 5),
    discount=arrays(0, 1, 5),
    rho=arrays(0, 3, 5),
    clips=st.tuples(clips, clips, clips),
)
def test_vtrace_equals_a_slow_loop(values, reward, discount, rho, clips):
    clip_rho, clip_c, clip_pg_rho = clips
    got = jax.jit(losses.vtrace)(
        values[:-1],
        values[1:],
        between(reward, discount),
        rho,
        clip_rho=clip_rho,
        clip_c=clip_c,
        clip_pg_rho=clip_pg_rho,
    )
    target, advantage = slow_vtrace(
        *(x.astype(np.float64) for x in (values, reward, discount, rho)), *clips
    )
    np.testing.assert_allclose(got.target, target, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(got.advantage, advantage, rtol=1e-4, atol=1e-3)


def test_vtrace_agrees_with_rlax():
    keys = jax.random.split(jax.random.key(0), 4)
    values, reward, discount, rho = (
        jax.random.uniform(key, (rows, 7), maxval=2.0)
        for key, rows in zip(keys, (21, 20, 20, 20), strict=True)
    )
    got = losses.vtrace(
        values[:-1], values[1:], between(reward, discount / 2), rho, clip_rho=1.3
    )
    want = jax.vmap(
        lambda *x: rlax.vtrace_td_error_and_advantage(*x, clip_rho_threshold=1.3), 1, 1
    )(values[:-1], values[1:], reward, discount / 2, rho)
    np.testing.assert_allclose(got.target - values[:-1], want.errors, rtol=1e-4)
    np.testing.assert_allclose(got.advantage, want.pg_advantage, rtol=1e-4, atol=1e-6)


def test_a_void_row_may_hold_anything():
    """An action at the end of an episode is nobody's: its ratio may be infinite."""
    last = jnp.array([[False], [True], [False]])
    mask = 1.0 - last
    ones = jnp.ones((3, 1))
    transitions = losses.Transitions(mask, 0.9 * mask, mask)
    for void in (jnp.inf, jnp.nan):
        rho = jnp.where(last, void, 0.5)
        got = losses.vtrace(ones, ones, transitions, rho)
        want = losses.vtrace(ones, ones, transitions, 0.5 * mask)
        np.testing.assert_array_equal(got.target, want.target)
        np.testing.assert_array_equal(got.advantage, want.advantage)


def test_on_policy_targets_are_n_step_returns():
    reward, values = jnp.ones((4, 1)), jnp.full((5, 1), 10.0)
    got = losses.vtrace(
        values[:-1], values[1:], between(reward, 0.5 * reward), jnp.ones((4, 1))
    )
    np.testing.assert_allclose(
        got.target[:, 0], [2.5, 3.0, 4.0, 6.0]
    )  # 1 + .5 (1 + .5 (1 + .5 (1 + .5 * 10)))


def episode(step_types, discount):
    steps = jnp.array(step_types, jnp.int32)[:, None]
    reward = jnp.where(steps == FIRST, 7.0, 1.0)  # that of FIRST counts for nothing
    return dm_env.TimeStep(steps, reward, column(discount), jnp.zeros_like(reward))


def test_only_last_to_first_is_void():
    timesteps = episode([FIRST, MID, LAST, FIRST, LAST], [1, 1, 0, 1, 1])
    got = losses.make_transitions(timesteps, 0.9)
    np.testing.assert_array_equal(got.mask[:, 0], [1, 1, 0, 1])
    np.testing.assert_array_equal(got.reward[:, 0], [1, 1, 0, 1])
    np.testing.assert_allclose(got.discount[:, 0], [0.9, 0, 0, 0.9])


def test_an_episode_that_was_lost_is_cut_off_before_its_end():
    """FIRST after MID: what led there is bootstrapped from the observation before."""
    timesteps = episode([FIRST, MID, MID, FIRST, MID], [1] * 5)
    got = losses.make_transitions(timesteps, 0.9)
    np.testing.assert_array_equal(got.mask[:, 0], [1, 1, 0, 1])
    values = column([0.0, 10, 20, 30, 40])
    advantage = losses.gae(values, got, 1.0)[:, 0]
    np.testing.assert_allclose(
        advantage, [1 + 0.9 * (1 + 0.9 * 20), 9, 0, 7], rtol=1e-6
    )
    traced = losses.vtrace(values[:-1], values[1:], got, jnp.ones((4, 1)))
    np.testing.assert_allclose(traced.advantage[:, 0], advantage, rtol=1e-6)
    np.testing.assert_allclose(traced.target[2, 0], 20)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("last", range(1, 6))
def test_nothing_after_an_end_changes_what_came_before(last, lost):
    """Values and rewards beyond it move no target or advantage at or before it."""

    def run(noise):
        types = [FIRST] + [MID] * 6
        types[last], types[last + 1] = MID if lost else LAST, FIRST
        discount = np.ones(7)  # a truncation: the last value itself does count
        timesteps = episode(types, discount)
        after = column(np.arange(7) > last)
        values = 1.0 + noise * after
        timesteps = timesteps._replace(reward=timesteps.reward + noise * after)
        got = losses.vtrace(
            values[:-1],
            values[1:],
            losses.make_transitions(timesteps, 0.9),
            jnp.full((6, 1), 1.5),
        )
        return np.asarray(got.target), np.asarray(got.advantage)

    target, advantage = run(0.0)
    target_, advantage_ = run(100.0)
    np.testing.assert_array_equal(target[: last + 1], target_[: last + 1])
    np.testing.assert_array_equal(advantage[: last + 1], advantage_[: last + 1])
    assert advantage[last] == 0.0  # the void transition teaches nothing
    assert advantage[last - 1] == pytest.approx(1 + 0.9 * 1.0 - 1.0)  # it bootstraps


def test_a_mean_over_actions_leaves_void_transitions_out():
    mask, entropy = column([1, 0, 1, 1]), column([1, np.inf, 2, 3])
    terms = losses.Terms(jnp.zeros((4, 1)), {}, mask, {"entropy": entropy})
    _, sums = losses.reduced(terms)
    metrics = losses.means(sums, mask.size, sums.taken)
    np.testing.assert_allclose(metrics["entropy"], 2.0)


def test_reward_clipping():
    reward = jnp.array([-10.0, -1, 0, 1, 10])
    np.testing.assert_allclose(
        losses.clip_reward(reward, "soft_asymmetric"),
        [-1.446041, -0.296063, 0, 0.986877, 4.820138],
        atol=1e-5,
    )
    np.testing.assert_allclose(losses.clip_reward(reward, "abs_one"), [-1, -1, 0, 1, 1])
    np.testing.assert_allclose(losses.clip_reward(reward, "none"), reward)


@st.composite
def episodes(draw):
    """Timesteps [T + 1, B] in which episodes end, or are lost, anywhere."""
    length, batch_size = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    shape = (length + 1, batch_size)
    ends, lost = draw(hnp.arrays(bool, (2, *shape)))
    terminated = draw(hnp.arrays(bool, shape))
    step_type = np.full(shape, int(MID), np.int32)
    for b in range(batch_size):
        for t in range(length + 1):
            if t and (lost[t, b] or step_type[t - 1, b] == LAST):
                step_type[t, b] = FIRST
            elif ends[t, b]:
                step_type[t, b] = LAST
    numbers = hnp.arrays(np.float32, shape, elements=st.floats(-5, 5, width=16))
    reward = np.where(step_type == FIRST, 0, draw(numbers))
    discount = np.where((step_type == LAST) & terminated, 0, 1)
    timesteps = dm_env.TimeStep(
        *map(jnp.float32, (step_type, reward, discount)), jnp.zeros(shape)
    )
    timesteps = timesteps._replace(step_type=jnp.int32(step_type))
    return timesteps, draw(numbers)


@jax.jit
def advantages(values, timesteps, discount, lambda_):
    return losses.gae(values, losses.make_transitions(timesteps, discount), lambda_)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(episodes(), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_sum_of_an_episodes_temporal_differences(case, discount, lambda_):
    timesteps, values = case
    got = np.asarray(advantages(values, timesteps, discount, lambda_))
    step_type, reward, continues, _ = (np.asarray(x) for x in timesteps)
    for b in range(values.shape[1]):
        for t in range(len(values) - 1):
            expected, weight = 0.0, 1.0
            for k in range(t, len(values) - 1):
                if step_type[k, b] == LAST or step_type[k + 1, b] == FIRST:
                    break
                after = discount * continues[k + 1, b] * values[k + 1, b]
                expected += weight * (reward[k + 1, b] + after - values[k, b])
                weight *= discount * lambda_ * continues[k + 1, b]
            np.testing.assert_allclose(got[t, b], expected, atol=1e-3, rtol=1e-4)


def test_gae_without_an_end_is_rlaxs():
    keys = jax.random.split(jax.random.key(0), 2)
    values, reward = (jax.random.normal(key, (6, 1)) for key in keys)
    timesteps = dm_env.TimeStep(
        jnp.full((6, 1), int(MID)), reward, jnp.ones((6, 1)), jnp.zeros((6, 1))
    )
    between = losses.make_transitions(timesteps, 0.9)
    expected = rlax.truncated_generalized_advantage_estimation(
        reward[1:, 0], jnp.full(5, 0.9), 0.8, values[:, 0]
    )
    got = losses.gae(values, between, 0.8)[:, 0]
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_standardize_is_over_all_cores(cores):
    x, weight = np.random.default_rng(0).random((2, 8, 5), np.float32)
    weight = np.round(weight)
    program = parallel.over_cores(
        lambda x, weight: losses.standardize(x, weight, parallel.AVERAGE),
        parallel.make_mesh(cores),
        (parallel.BATCH, parallel.BATCH),
        parallel.BATCH,
    )
    got = np.asarray(program(x, weight))
    chosen = x[weight == 1]
    expected = (chosen - chosen.mean()) / chosen.std()
    np.testing.assert_allclose(got[weight == 1], expected, atol=1e-5)
    assert (got[weight == 0] == 0).all()


def test_standardized_without_weight_is_zero():
    """Where every transition is void, as between episodes that end together."""
    x, none = jnp.ones((1, 4)), jnp.zeros((1, 4))
    np.testing.assert_array_equal(losses.standardize(x, none, parallel.AVERAGE), none)


def test_ppos_advantages_need_no_import_of_rlax():
    """It brings TensorFlow Probability: a second of each start."""
    program = """
import sys
import jax.numpy as jnp
from podracer.learning import losses
x = jnp.ones((2, 1))
losses.gae(jnp.ones((3, 1)), losses.Transitions(x, x, x), 0.9)
assert "rlax" not in sys.modules
"""
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", program], env=env, timeout=120, check=True)
