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


def close(got, expected):
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-5)
