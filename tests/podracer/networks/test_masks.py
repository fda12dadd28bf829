"""Action masks: what is forbidden is never sampled, compared or maximized."""

from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from podracer import networks
from podracer.agents import disco, dqn, lpg, pqn
from podracer.errors import UserError
from podracer.learning.exploration import explore
from podracer.networks import action_model, masks
from podracer.networks.policies import (
    Categorical,
    Composite,
    Gaussian,
    MultiCategorical,
    masked,
)
from tests.jitted import drawn, jitted_network

CHOICE = specs.DiscreteArray(4)
CHOICES = specs.BoundedArray((2,), np.int32, 0, [2, 1])  # of 3 and of 2
STATE = specs.Array((3,), np.float32)


def mask_spec(*shape, dtype=bool):
    return specs.BoundedArray(shape, dtype, 0, 1)


def observed(*shape, dtype=bool):
    return {"action_mask": mask_spec(*shape, dtype=dtype), "state": STATE}


def distribution(logits, allowed):
    """By direct sums over what is allowed, in float64."""
    weights = np.where(allowed, np.exp(np.float64(logits)), 0.0)
    return weights / weights.sum()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.booleans(), min_size=2, max_size=6))
def test_a_masked_policy_is_the_distribution_over_what_is_allowed(seed, allowed):
    random, allowed = np.random.default_rng(seed), np.array(allowed)
    allowed[random.integers(len(allowed))] = True
    logits, others = random.normal(size=(2, len(allowed))).astype(np.float32) * 3
    policy, other = (
        masked(Categorical(jnp.asarray(x)), {"": jnp.asarray(allowed)})
        for x in (logits, others)
    )
    p, q = distribution(logits, allowed), distribution(others, allowed)
    inside = np.flatnonzero(allowed)
    action = random.choice(inside)
    np.testing.assert_allclose(
        policy.log_prob(action), np.log(p[action]), atol=1e-5, rtol=1e-5
    )
    entropy = -np.sum(p[inside] * np.log(p[inside]))
    np.testing.assert_allclose(policy.entropy(), entropy, atol=1e-5)
    kl = np.sum(p[inside] * np.log(p[inside] / q[inside]))
    np.testing.assert_allclose(policy.kl(other), kl, atol=1e-4)
    assert policy.mode() == np.argmax(p)


def test_what_is_forbidden_is_never_sampled_and_has_no_gradient():
    allowed = jnp.array([True, False, True])
    keys = jax.random.split(jax.random.key(0), 2000)

    def policy(logits):
        return masked(Categorical(logits), {"": allowed})

    logits = jnp.array([0.0, 9.0, 0.0])
    shares = np.bincount(policy(jnp.tile(logits, (2000, 1))).sample(keys), minlength=3)
    assert shares[1] == 0
    assert abs(shares[0] / 2000 - 0.5) < 0.05

    def of(logits):
        return policy(logits).entropy() + policy(logits).log_prob(0)

    gradient = jax.grad(of)(jnp.array([0.5, 9.0, 0.0]))
    assert np.isfinite(gradient).all()
    assert gradient[1] == 0.0 != gradient[0]


@pytest.mark.parametrize("shape", [(5,), None])
def test_each_of_several_choices_has_its_own_mask(shape):
    action_spec = CHOICES if shape else specs.BoundedArray((2,), np.int32, 0, 2)
    sizes = (3, 2) if shape else (3, 3)
    network = networks.actor_critic(
        observed(*(shape or (2, 3))), action_spec, networks.Config(hidden_sizes=(4,))
    )
    rows = [[True, False, True], [False, True, False][: sizes[1]]]
    mask = np.concatenate(rows) if shape else np.array(rows)
    timestep = some_timestep(np.stack([mask, ~mask]))
    _, (policy, _) = network.step(
        drawn(network.init), network.initial_memory(2), timestep
    )
    for choice, allowed in zip(policy.choices, rows, strict=True):
        forbidden = np.isneginf(choice.logits)
        np.testing.assert_array_equal(forbidden[0], ~np.array(allowed))
        np.testing.assert_array_equal(forbidden[1], np.array(allowed))


def some_timestep(mask, state=None):
    zeros = np.zeros(len(mask), np.float32)
    state = np.ones((len(mask), 3), np.float32) if state is None else state
    observation = {"action_mask": mask, "state": state}
    return dm_env.TimeStep(np.int32(zeros), zeros, zeros, observation)


MAKERS = {
    "actor_critic": (networks.actor_critic, networks.Config(hidden_sizes=(4,))),
    "pqn": (pqn.make_network, pqn.NetworkConfig(hidden_sizes=(4,))),
    "dqn": (dqn.make_network, dqn.NetworkConfig(hidden_sizes=(4,), dueling=True)),
    "lpg": (lpg.make_network, lpg.NetworkConfig(hidden_sizes=(4,))),
    "disco": (
        disco.make_network,
        action_model.Config(
            hidden_sizes=(4,), embedding_size=4, model_size=4, head_size=4
        ),
    ),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [bool, np.int8])
def test_every_network_of_discrete_actions_is_masked(name, dtype):
    make, config = MAKERS[name]
    network = jitted_network(make(observed(4, dtype=dtype), CHOICE, config))
    mask = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]], dtype)
    _, predictions = network.step(
        drawn(network.init), network.initial_memory(3), some_timestep(mask)
    )
    outputs = {
        "pqn": lambda x: x,
        "dqn": lambda x: x[..., 0],  # of one quantile
    }.get(name, lambda x: x.policy.logits)(predictions)
    np.testing.assert_array_equal(np.isneginf(outputs[:2]), mask[:2] == 0)
    assert np.isfinite(outputs[2]).all()  # nothing is allowed: nothing is forbidden


def test_a_network_that_sees_the_last_action_too_is_masked():
    config = networks.Config(hidden_sizes=(4,), last_action=True)
    network = networks.actor_critic((observed(4), CHOICE), CHOICE, config)
    timestep = some_timestep(np.array([[True, False, True, True]]))
    timestep = timestep._replace(
        observation=(timestep.observation, np.zeros(1, np.int32))
    )
    _, (policy, _) = network.step(
        drawn(network.init), network.initial_memory(1), timestep
    )
    np.testing.assert_array_equal(
        np.isneginf(policy.logits), [[False, True, False, False]]
    )


class Board(NamedTuple):
    grid: Any
    action_mask: Any


def test_a_mask_is_found_in_a_named_tuple():
    allowed = masks.make_mask(Board(STATE, mask_spec(2)), specs.DiscreteArray(2))
    observation = Board(jnp.zeros((1, 3)), jnp.array([[True, False]]))
    np.testing.assert_array_equal(allowed(observation)[""], [[True, False]])
    assert masks.make_mask(STATE, CHOICE) is None


def test_where_nothing_is_allowed_is_found_before_an_end():
    find = masks.find_nothing_allowed(observed(5), CHOICES)
    mask = np.ones((4, 5), bool)
    mask[1, 3:] = mask[2, :] = mask[3, 0] = False
    timestep = some_timestep(mask)
    np.testing.assert_array_equal(find(timestep), [False, True, True, False])
    last = timestep._replace(step_type=np.full(4, dm_env.StepType.LAST))
    assert not find(last).any()


def test_a_random_action_of_pqn_is_one_that_is_allowed():
    keys = jax.random.split(jax.random.key(0), 3000)
    values = jnp.array([-jnp.inf, 1.0, -jnp.inf, 2.0, 0.5])
    actions = jax.vmap(explore, (0, None, None))(keys, values, 1.0)
    shares = np.bincount(actions, minlength=5) / 3000
    np.testing.assert_allclose(shares, [0, 1 / 3, 0, 1 / 3, 1 / 3], atol=0.04)
    assert (jax.vmap(explore, (0, None, None))(keys, values, 0.0) == 3).all()


COMPOSITE = {
    "gear": CHOICE,
    "keys": CHOICES,
    "steer": specs.BoundedArray((2,), np.float32, -1, 1),
}


def test_a_composite_action_has_a_head_for_each_part():
    spec = {"action_mask": {"gear": mask_spec(4)}, "state": STATE}
    network = networks.actor_critic(spec, COMPOSITE, networks.Config(hidden_sizes=(4,)))
    gear = np.array([[True, False, True, True]] * 2)
    timestep = some_timestep(gear)._replace(
        observation={
            "action_mask": {"gear": gear},
            "state": np.ones((2, 3), np.float32),
        }
    )
    _, (policy, _) = network.step(
        drawn(network.init), network.initial_memory(2), timestep
    )
    parts = policy.parts
    kinds = [type(parts[x]) for x in ("gear", "keys", "steer")]
    assert kinds == [Categorical, MultiCategorical, Gaussian]
    assert np.isneginf(parts["gear"].logits[:, 1]).all()
    action = policy.sample(jax.random.split(jax.random.key(0), 2))
    assert {x: y.shape for x, y in action.items()} == {
        "gear": (2,),
        "keys": (2, 2),
        "steer": (2, 2),
    }
    for method in ("log_prob", "entropy", "kl"):
        of = {"log_prob": action, "kl": parts}.get(method)
        terms = [
            getattr(parts[x], method)(*([] if of is None else [of[x]])) for x in parts
        ]
        whole = {"log_prob": (action,), "kl": (Composite(parts),)}.get(method, ())
        np.testing.assert_allclose(
            getattr(policy, method)(*whole), sum(terms), atol=1e-6
        )
    assert (policy.mode()["gear"] == parts["gear"].mode()).all()


def test_parts_of_an_action_are_drawn_independently():
    parts = {x: Categorical(jnp.zeros((500, 2))) for x in ("a", "b")}
    action = Composite(parts).sample(jax.random.split(jax.random.key(0), 500))
    assert 0.4 < np.mean(action["a"] == action["b"]) < 0.6


@pytest.mark.parametrize(
    ("observation", "action", "line"),
    [
        (
            observed(5),
            CHOICE,
            r"action_mask is bool \(5,\); it must be .* \(4,\), True",
        ),
        (observed(4, dtype=np.float32), CHOICE, r"action_mask is float32 \(4,\)"),
        (observed(2, 3), CHOICES, r"action_mask is bool \(2, 3\); .* \(5,\), True"),
        (observed(2), COMPOSITE["steer"], "action_mask is bool"),
        (observed(4), COMPOSITE, "action_mask masks no part of the action .*'gear'"),
        (
            {"action_mask": {"steer": mask_spec(2)}},
            COMPOSITE,
            r"action_mask\.steer is bool",
        ),
    ],
)
def test_a_mask_that_does_not_fit_is_one_line(observation, action, line):
    with pytest.raises(UserError, match=line):
        masks.make_mask(observation, action)
