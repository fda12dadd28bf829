"""LPG's rule: its architecture and loss against the paper's, and episodes' ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agent import ActorOutput, Trajectory
from podracer.errors import UserError
from podracer.networks.policies import Categorical
from podracer.rules import lpg
from podracer.rules.rule import Experience
from tests.podracer.rules.experience import (
    BATCH_SIZE,
    FIRST,
    LENGTH,
    noisy,
    normal,
    some_trajectory,
)
from tests.rule_files import returns_weights

SIZES = lpg.Sizes(prediction_size=3, memory_size=5, embedding_size=2)
CONFIG = lpg.Config(discount_factor=0.95, alpha_y=0.5)
RULE = lpg.make_rule(CONFIG, SIZES)
gradient = jax.jit(jax.grad(RULE.loss, argnums=1, has_aux=True))


def some_predictions(seed, length=LENGTH + 1, size=3):
    random, shape = np.random.default_rng(seed), (length, BATCH_SIZE)
    return lpg.Predictions(
        Categorical(normal(random, *shape, 2)),
        Categorical(normal(random, *shape, size)),
    )


def targets_of(weights, trajectory, predictions, rule=RULE):
    experience = Experience(trajectory, (), predictions, lambda params: predictions)
    return jax.jit(lambda *x: rule.targets(x[0], (), Experience(*x[1:], None)))(
        weights, *experience[:3]
    )


def test_the_papers_sizes_have_277_792_parameters():
    weights = jax.eval_shape(lpg.make_rule(lpg.Config()).init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(weights)) == 277_792


def test_the_inner_gradient_is_that_of_the_paper():
    timesteps = jax.tree.map(lambda x: x[:2, :1], some_trajectory(0).timesteps)
    action = ActorOutput(jnp.zeros((1, 1), jnp.int32), ())
    trajectory = Trajectory(timesteps, action, ())
    predictions = lpg.Predictions(
        Categorical(jnp.zeros((2, 1, 2))),
        Categorical(jnp.log(jnp.array([[[0.2, 0.3, 0.5]]] * 2))),
    )
    y_hat = Categorical(jnp.log(jnp.array([[[0.5, 0.25, 0.25]]])))
    targets = lpg.Targets(jnp.full((1, 1), 0.7), y_hat)
    gradients, metrics = gradient(targets, predictions, trajectory)
    assert float(metrics["loss/prediction"]) == pytest.approx(0.218012, abs=1e-6)
    policy, y = (-x.logits[:, 0] for x in gradients)  # the paper ascends
    np.testing.assert_allclose(policy, [[0.35, -0.35], [0, 0]], atol=1e-6)
    expected = [[0.113430, 0.005354, -0.118784], [0, 0, 0]]
    np.testing.assert_allclose(y, expected, atol=1e-6)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def by_hand(weights, trajectory, predictions):
    """U_eta, environment by environment and step by step, from the paper's text."""
    w = jax.tree.map(lambda x: np.asarray(x, np.float64), weights["params"])
    step_type, reward, discount, _ = map(np.asarray, trajectory.timesteps)
    pi = np.asarray(jax.nn.softmax(predictions.policy.logits))
    y = np.asarray(jax.nn.softmax(predictions.y.logits), np.float64)
    action = np.asarray(trajectory.outputs.action)

    def dense(x, name):
        return x @ w[name]["kernel"] + w[name]["bias"]

    def phi(y):
        return dense(np.maximum(dense(y, "embedding"), 0), "embedding_output")[0]

    pi_hat = np.zeros((LENGTH, BATCH_SIZE))
    y_hat = np.zeros((LENGTH, BATCH_SIZE, SIZES.prediction_size))
    for b in range(BATCH_SIZE):
        c = h = np.zeros(SIZES.memory_size)
        for t in reversed(range(LENGTH)):
            if step_type[t + 1, b] == FIRST:  # nothing happened between these two
                c = h = np.zeros(SIZES.memory_size)
                continue
            x = np.array(
                [
                    reward[t + 1, b],
                    discount[t + 1, b] == 0,
                    CONFIG.discount_factor,
                    pi[t, b, action[t, b]],
                    phi(y[t, b]),
                    phi(y[t + 1, b]) if discount[t + 1, b] else 0.0,
                ]
            )
            gates = {
                g: x @ w["lstm"][f"i{g}"]["kernel"] + dense_lstm(w["lstm"][f"h{g}"], h)
                for g in "ifgo"
            }
            c = sigmoid(gates["f"]) * c + sigmoid(gates["i"]) * np.tanh(gates["g"])
            h = sigmoid(gates["o"]) * np.tanh(c)
            features = np.maximum(h, 0)
            pi_hat[t, b] = dense(features, "pi_hat")[0]
            logits = dense(features, "y_hat")
            y_hat[t, b] = np.exp(logits) / np.exp(logits).sum()
    return pi_hat, y_hat


def dense_lstm(part, h):
    return h @ part["kernel"] + part["bias"]


def test_the_network_is_that_of_the_paper():
    """Episodes that terminate, are truncated or lost: nothing crosses their ends."""
    noise = noisy(jax.jit(RULE.init)(jax.random.key(0)))
    trajectory = some_trajectory(1)
    predictions = some_predictions(2)
    got, state, metrics = targets_of(noise, trajectory, predictions)
    pi_hat, y_hat = by_hand(noise, trajectory, predictions)
    counts = np.asarray(trajectory.timesteps.step_type[1:]) != FIRST
    np.testing.assert_allclose(got.pi_hat * counts, pi_hat, atol=1e-5)
    probabilities = jax.nn.softmax(got.y_hat.logits) * counts[..., None]
    np.testing.assert_allclose(probabilities, y_hat, atol=1e-5)
    assert state == ()
    square = metrics["rule/pi_hat_square"]
    assert float(square) == pytest.approx(np.mean(pi_hat**2), rel=1e-4)
    square = metrics["rule/y_hat_square"]
    assert float(square) == pytest.approx(np.mean((y_hat**2).sum(-1)), rel=1e-4)


def test_a_truncated_episode_ends_as_a_trajectory_does():
    """The rule cannot tell the two apart, so that it may bootstrap from y at both."""
    weights = jax.jit(RULE.init)(jax.random.key(0))
    trajectory = some_trajectory(1)
    predictions = some_predictions(2)
    whole, _, _ = targets_of(weights, trajectory, predictions)
    timesteps, outputs, _ = trajectory
    short = Trajectory(  # environment 1 is truncated at timestep 2
        jax.tree.map(lambda x: x[:3], timesteps),
        jax.tree.map(lambda x: x[:2], outputs),
        (),
    )
    part, _, _ = targets_of(weights, short, jax.tree.map(lambda x: x[:3], predictions))
    np.testing.assert_allclose(whole.pi_hat[:2, 1], part.pi_hat[:, 1], atol=1e-6)
    assert abs(float(whole.pi_hat[1, 2] - part.pi_hat[1, 2])) < 1e-6  # lost there
    assert abs(float(whole.pi_hat[1, 3] - part.pi_hat[1, 3])) > 1e-4  # continues


def test_a_void_transition_has_no_loss():
    trajectory = some_trajectory(1)
    predictions = some_predictions(2)
    y_hat = some_predictions(3, LENGTH).y
    targets = lpg.Targets(jnp.ones((LENGTH, BATCH_SIZE)), y_hat)
    gradients, _ = gradient(targets, predictions, trajectory)
    void = np.asarray(trajectory.timesteps.step_type[1:]) == FIRST
    for x in jax.tree.leaves(gradients):
        assert not np.asarray(x[:-1])[void].any() and not np.asarray(x[-1]).any()
        assert np.asarray(x[:-1])[~void].all()


def test_clipped_rewards_are_what_the_rule_reads():
    sizes, weights = returns_weights(prediction_size=3)
    trajectory = some_trajectory(1)
    predictions = some_predictions(2)
    clipped = trajectory.timesteps._replace(
        reward=jnp.clip(trajectory.timesteps.reward, -1.0, 1.0)
    )
    got = [
        targets_of(
            weights,
            trajectory._replace(timesteps=timesteps),
            predictions,
            lpg.make_rule(lpg.Config(reward_clipping=how), sizes),
        )[0].pi_hat
        for how, timesteps in (("abs_one", trajectory.timesteps), ("none", clipped))
    ]
    np.testing.assert_array_equal(*got)
    assert (trajectory.timesteps.reward > 1.0).any()


def test_other_predictions_are_refused():
    trajectory = some_trajectory(1)
    weights = jax.jit(RULE.init)(jax.random.key(0))
    with pytest.raises(UserError, match=r"prediction_size is 4.*prediction-size 3"):
        targets_of(weights, trajectory, some_predictions(2, size=4))
    with pytest.raises(UserError, match="the network predicts tuple"):
        targets_of(weights, trajectory, (*some_predictions(2),))
