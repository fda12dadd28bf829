"""Policies: against distrax, numerical integrals and each other."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.networks.policies import (
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
)

KEY = jax.random.key(0)


def gaussian(seed, policy=Gaussian, shape=(4, 3)):
    mean, deviation = jax.random.normal(jax.random.key(seed), (2, *shape))
    return policy(mean, jnp.exp(0.5 * deviation))


def categorical(seed, shape=(4, 3, 5)):
    return Categorical(jax.random.normal(jax.random.key(seed), shape))


def several(seed):
    sizes = (2, 5)
    return MultiCategorical(tuple(categorical(seed + n, (4, n)) for n in sizes))


def test_categorical_is_distrax():
    ours, other = categorical(1), categorical(2)
    theirs = distrax.Categorical(ours.logits)
    action = jax.random.randint(KEY, (4, 3), 0, 5)
    close(ours.log_prob(action), theirs.log_prob(action))
    close(ours.entropy(), theirs.entropy())
    close(ours.kl(other), theirs.kl_divergence(distrax.Categorical(other.logits)))
    np.testing.assert_array_equal(ours.mode(), theirs.mode())


def test_gaussian_is_distrax():
    ours, other = gaussian(1), gaussian(2)
    theirs, others = (distrax.Independent(distrax.Normal(*x), 1) for x in (ours, other))
    action = jax.random.normal(KEY, (4, 3))
    close(ours.log_prob(action), theirs.log_prob(action))
    close(ours.entropy(), theirs.entropy())
    close(ours.kl(other), theirs.kl_divergence(others))


def test_kl_of_the_specification():
    """Spec F3."""
    old = Gaussian(jnp.array([0.0, 0.5]), jnp.array([0.35, 0.35]))
    new = Gaussian(jnp.array([0.1, 0.4]), jnp.array([0.3, 0.4]))
    close(old.kl(new), 0.1295543239)
    close(new.kl(old), 0.1226601035)


def test_tanh_gaussian_is_a_density_and_its_entropy_the_integral():
    for mean, deviation in [(0.3, 0.5), (-1.0, 0.2), (0.0, 1.0)]:
        policy = TanhGaussian(jnp.full(1, mean), jnp.full(1, deviation))
        x = np.tanh(np.linspace(-7, 7, 200_001))
        log_prob = jax.vmap(policy.log_prob)(jnp.float32(x[:, None]))
        inside = np.abs(x) < 0.9999  # float32 resolves no more
        log_p = np.where(inside, np.float64(log_prob), 0.0)
        p = np.where(inside, np.exp(log_p), 0.0)
        assert abs(np.trapezoid(p, x) - 1.0) < 2e-3
        entropy = -np.trapezoid(p * log_p, x)
        np.testing.assert_allclose(policy.entropy(), entropy, atol=1e-2)


@pytest.mark.parametrize("mean", [0.0, -2.0])
@pytest.mark.parametrize("deviation", [0.1, 1.0, 5.0])
def test_the_entropy_of_tanh_of_a_wide_gaussian(mean, deviation):
    """Of -3.694 at deviation 5, a rule of 16 Gauss-Hermite nodes misses a tenth."""
    z = np.linspace(-9.0, 9.0, 200_001)
    x = mean + deviation * z
    slope = 2 * (np.log(2) - x - np.logaddexp(0, -2 * x))
    density = np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)
    entropy = np.trapezoid(density * slope, z) + np.log(deviation)
    entropy += 0.5 * np.log(2 * np.pi * np.e)
    policy = TanhGaussian(jnp.full(1, mean), jnp.full(1, deviation))
    np.testing.assert_allclose(policy.entropy(), entropy, atol=1e-3)
    if (mean, deviation) == (0.0, 5.0):
        np.testing.assert_allclose(entropy, -3.694, atol=1e-3)


@pytest.mark.parametrize("action", [-1.0, 1.0])
def test_an_action_at_the_bound_has_a_probability(action):
    """As one out of a file, that no policy of ours has sampled."""

    def log_prob(mean, action):
        return TanhGaussian(mean[None], jnp.ones(1)).log_prob(action[None])

    both = jax.jit(jax.value_and_grad(log_prob, (0, 1)))
    value, slopes = both(jnp.float32(0.0), jnp.float32(action))
    assert np.isfinite([value, *slopes]).all()


def test_squashed_actions_stay_inside_and_have_a_probability():
    policy = TanhGaussian(jnp.full((100, 2), 9.0), jnp.ones((100, 2)))
    action = policy.sample(jax.random.split(KEY, 100))
    assert (jnp.abs(action) < 1).all()
    assert jnp.isfinite(policy.log_prob(action)).all()
    np.testing.assert_array_equal(policy.mode(), action[:1].max())


@pytest.mark.parametrize(
    "make", [lambda seed: categorical(seed, (4, 5)), several, gaussian]
)
def test_samples_are_of_the_policy_and_of_their_own_keys(make):
    policy = make(1)
    many = jax.tree.map(lambda x: jnp.repeat(x, 20_000, axis=0), policy)
    actions = many.sample(jax.random.split(KEY, 80_000))
    # -E log p(sample) is the entropy
    log_prob = many.log_prob(actions).reshape(4, -1).mean(1)
    np.testing.assert_allclose(-log_prob, policy.entropy(), atol=0.03)
    keys = jax.random.split(KEY, 4)
    together = policy.sample(keys)
    alone = jax.tree.map(lambda x: x[2:3], policy).sample(keys[2:3])
    close(together[2:3], alone)


def float64_of(mean, deviation, noise):
    """(action [..., D], log-probability [...]) of tanh(mean + deviation noise)."""
    before = mean + deviation * noise
    # log(1 - tanh(x)^2) = -2 log cosh(x), and log cosh(x) without overflow
    log_cosh = np.logaddexp(before, -before) - np.log(2.0)
    log_prob = -0.5 * noise**2 - 0.5 * np.log(2.0 * np.pi) - np.log(deviation)
    return np.tanh(before), np.sum(log_prob + 2.0 * log_cosh, -1)


@pytest.mark.parametrize("scale", [1.0, 20.0], ids=["inside", "at the bounds"])
def test_a_reparametrized_sample_is_that_of_float64(scale):
    """The slopes, too: here finite differences, in JAX the gradient along the path."""
    policy = gaussian(1, TanhGaussian)
    policy = policy._replace(mean=scale * jnp.sign(policy.mean))
    noise = jax.random.normal(KEY, (4, 3))
    wide = [np.float64(x) for x in policy]
    expected_action, expected = float64_of(*wide, np.float64(noise))
    action, log_prob = policy.reparametrized(noise)
    np.testing.assert_allclose(action, expected_action, atol=2e-6)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-3)
    assert (np.abs(action) < 1.0).all()

    def total(policy):
        action, log_prob = policy.reparametrized(noise)
        return jnp.sum(action) + 0.1 * jnp.sum(log_prob)

    def total64(mean, deviation):
        action, log_prob = float64_of(mean, deviation, np.float64(noise))
        return np.sum(action) + 0.1 * np.sum(log_prob)

    gradient = jax.grad(total)(policy)
    for field, slope in enumerate(gradient):
        for place in np.ndindex(4, 3):
            up, down = ([np.array(x) for x in wide] for _ in range(2))
            up[field][place] += 1e-5
            down[field][place] -= 1e-5
            expected = (total64(*up) - total64(*down)) / 2e-5
            np.testing.assert_allclose(slope[place], expected, rtol=1e-3, atol=1e-3)


def test_reparametrized_samples_are_of_the_policy():
    policy = gaussian(1, TanhGaussian)
    many = jax.tree.map(lambda x: jnp.repeat(x, 20_000, axis=0), policy)
    action, log_prob = many.reparametrized(jax.random.normal(KEY, many.mean.shape))
    # The action alone forgets the value before tanh where it is close to a bound.
    within = jnp.all(jnp.abs(action) < 0.999, -1)
    assert within.mean() > 0.9
    error = jnp.where(within, log_prob - many.log_prob(action), 0.0)
    np.testing.assert_allclose(error, 0.0, atol=0.01)
    mean = -log_prob.reshape(4, -1).mean(1)
    np.testing.assert_allclose(mean, policy.entropy(), atol=0.03)
    others = many.sample(jax.random.split(KEY, 80_000))
    means = (x.reshape(4, -1, 3).mean(1) for x in (action, others))
    np.testing.assert_allclose(*means, atol=0.02)


@pytest.mark.parametrize("mean", [-20.0, 20.0])
def test_at_the_bounds_all_is_finite_and_pulls_back(mean):
    """Where tanh is flat the log-probability still says in which direction the action lies."""
    shape = (8, 2)

    def log_prob(mean):
        policy = TanhGaussian(jnp.full(shape, mean), jnp.full(shape, 0.1))
        action, log_prob = policy.reparametrized(jax.random.normal(KEY, shape))
        return jnp.mean(log_prob), action

    both = jax.jit(jax.value_and_grad(log_prob, has_aux=True))
    (value, action), slope = both(mean)
    assert np.isfinite(value) and np.isfinite(action).all()
    np.testing.assert_allclose(slope, 2.0 * 2.0 * np.sign(mean), rtol=1e-3)
    policy = TanhGaussian(jnp.full(shape, mean), jnp.full(shape, 0.1))
    assert np.isfinite(policy.log_prob(action)).all()


@pytest.mark.parametrize("make", [categorical, several, gaussian])
def test_kl_is_zero_of_itself_and_positive_of_others(make):
    close(make(1).kl(make(1)), 0.0)
    assert (make(1).kl(make(5)) > 0).all()


def test_several_choices_are_the_sum_of_each():
    policy, action = several(1), jnp.array([[1, 4], [0, 0], [1, 2], [0, 3]])
    each = [x.log_prob(action[:, k]) for k, x in enumerate(policy.choices)]
    close(policy.log_prob(action), each[0] + each[1])
    close(policy.entropy(), sum(x.entropy() for x in policy.choices))


def test_an_impossible_choice_leaves_finite_gradients():
    def log_prob(logits):
        return Categorical(logits).log_prob(jnp.array([0])).sum()

    gradient = jax.grad(log_prob)(jnp.array([[0.0, 1.0, -1e9]]))
    assert jnp.isfinite(gradient).all()


def test_a_forbidden_choice_costs_nothing():
    """Its logit is -inf: all is as without it, gradients too."""
    few, many = [0.3, 1.0], [0.3, -jnp.inf, 1.0]

    def all_of(logits, others, action):
        policy, other = Categorical(logits), Categorical(others)
        return policy.entropy() + policy.kl(other) + policy.log_prob(action)

    both = jax.jit(jax.value_and_grad(all_of, (0, 1)))
    others = jnp.array([0.1, -0.2]), jnp.array([0.1, -jnp.inf, -0.2])
    want = both(jnp.array(few), others[0], jnp.int32(1))
    got = both(jnp.array(many), others[1], jnp.int32(2))
    close(got[0], want[0])
    for gradient, expected in zip(got[1], want[1], strict=True):
        close(gradient, jnp.insert(expected, 1, 0.0))
    assert Categorical(others[0]).kl(Categorical(jnp.array([0.0, -jnp.inf]))) == np.inf


def close(got, expected):
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-5)
