"""MuZero: its search against mctx's values, its gradients, masks and refusals."""

import dataclasses
import functools
from functools import partial
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from dm_env import specs

from podracer import networks
from podracer.agent import ActorOutput, LearnerState, Trajectory
from podracer.agents import muzero
from podracer.agents.muzero import search as muzero_search
from podracer.agents.muzero.agent import Extras, make_loss
from podracer.errors import UserError
from podracer.learning import model_targets
from podracer.networks import world_model
from podracer.networks.world_model import Model
from tests.jitted import jitted

FIRST, MID, LAST = map(int, dm_env.StepType)


class Exact(NamedTuple):
    """A support whose logits are the scalars: without rounding, so that ties stay ties."""

    max_return: float = 100.0

    def mean(self, logits):
        return logits[..., 0]

    def cross_entropy(self, logits, x):
        return jnp.zeros_like(x)


SUPPORT = Exact()


def model_of(reward, next_hidden, logits, value=jnp.zeros_like):
    """A model made by hand: hidden is the observation [B]; the rest depends on it.

    `reward` and `next_hidden` are functions of (hidden, action), `logits` of hidden [B].
    """

    def dynamics(params, hidden, action):
        return next_hidden(hidden, action), reward(hidden, action)[..., None]

    def prediction(params, hidden):
        return logits(hidden), value(hidden)[..., None]

    spec = specs.Array((), np.float32)
    actions = logits(jnp.zeros(1)).shape[-1]
    return Model(
        lambda key: (), lambda _, x: x, dynamics, prediction, SUPPORT, actions, spec
    )


def same_logits(row):
    return lambda hidden: jnp.broadcast_to(jnp.float32(row), (*hidden.shape, len(row)))


def make_search(model, exploring=False, **config):
    """A function of keys [B], params, observation and temperature, compiled once."""
    search = muzero_search.make_search(muzero.Config(**config), model)
    return jax.jit(partial(search, exploring=exploring))


def keys_of(batch_size, seed=0):
    return jax.random.split(jax.random.key(seed), batch_size)


def found(model, observation, exploring=False, temperature=0.0, **config):
    keys = keys_of(jax.tree.leaves(observation)[0].shape[0])
    search = make_search(model, exploring, **config)
    return search(keys, (), observation, jnp.float32(temperature))


# Spec F4: a tree of depth 2. The hidden state counts the steps from the root.
AS_IN_F4 = {"discount_factor": 0.9, "least_range": 1e-8}
REWARDS = np.float32([[0.0, 1.0, 0.5], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])


def two_steps():
    def reward(hidden, action):
        return jnp.asarray(REWARDS)[jnp.minimum(hidden, 2.0).astype(int), action]

    return model_of(
        reward, lambda hidden, action: hidden + 1, same_logits([0, 0.5, -0.5])
    )


@pytest.mark.parametrize(
    "simulations, visits, value",
    [
        (8, [0, 8, 0], 1.688889),
        pytest.param(16, [1, 15, 0], 2.047059, marks=pytest.mark.slow),
        pytest.param(50, [2, 47, 1], 2.343137, marks=pytest.mark.core),
    ],
)
def test_the_search_has_mctxs_numbers(simulations, visits, value):
    got = found(two_steps(), jnp.zeros(1), num_simulations=simulations, **AS_IN_F4)
    np.testing.assert_allclose(simulations * got.policy[0], visits, atol=1e-4)
    assert float(got.value[0]) == pytest.approx(value, abs=1e-4)
    assert int(got.action[0]) == 1


@pytest.mark.parametrize(
    "simulations, weights, value",
    [
        (8, [0.0027, 0.98674, 0.01055], 0.811111),
        pytest.param(16, [0.00186, 0.9155, 0.08264], 1.464706, marks=pytest.mark.slow),
        pytest.param(50, [0.00049, 0.97032, 0.02919], 2.064706, marks=pytest.mark.core),
    ],
)
def test_the_gumbel_search_has_mctxs_numbers(simulations, weights, value):
    got = found(
        two_steps(),
        jnp.zeros(1),
        policy="gumbel",
        num_simulations=simulations,
        **AS_IN_F4,
    )
    np.testing.assert_allclose(got.policy[0], weights, atol=1e-5)
    assert float(got.value[0]) == pytest.approx(value, abs=1e-4)
    assert int(got.action[0]) == 1


STILL = 9.0  # a hidden state that no action changes


def only_second_step_pays():
    """Action 1, then anything, pays 1; from STILL, nothing ever does."""

    def next_hidden(hidden, action):
        return jnp.where(hidden == STILL, hidden, jnp.where(action == 1, 1.0, 2.0))

    reward = lambda hidden, action: jnp.where(hidden == 1.0, 1.0, 0.0)
    return model_of(reward, next_hidden, same_logits([0.5, 0.0]))


@pytest.mark.parametrize("policy", ["muzero", "gumbel"])
def test_the_tree_grows(policy):
    roots = jnp.array([0.0, STILL])
    got = found(only_second_step_pays(), roots, policy=policy, num_simulations=16)
    assert got.action.tolist() == [1, 0]  # the prior prefers 0
    assert (got.value > 0.1).tolist() == [True, False]


@pytest.mark.parametrize("policy", ["muzero", "gumbel"])
def test_identity_dynamics_are_a_one_step_look_ahead(policy):
    """Whatever follows is the same, so the best action has the best immediate reward."""
    rewards = jax.random.normal(jax.random.key(0), (32, 3))
    rewards = jnp.concatenate([rewards, jnp.ones((32, 1))], 1)  # the last is the value

    def reward(hidden, action):
        return jnp.take_along_axis(hidden[:, :3], action[:, None], 1)[:, 0]

    model = model_of(
        reward,
        lambda hidden, action: hidden,
        lambda hidden: jnp.zeros((hidden.shape[0], 3)),
        lambda hidden: hidden[..., -1],
    )._replace(num_actions=3)
    got = found(
        model,
        rewards,
        policy=policy,
        num_simulations=24,
        max_depth=1,
        discount_factor=0.5,
    )
    np.testing.assert_array_equal(got.action, rewards[:, :3].argmax(-1))
    if policy == "muzero":  # the mean of the root's value and 24 of r + 0.5 v
        simulated = (got.policy * (rewards[:, :3] + 0.5)).sum(-1)
        np.testing.assert_allclose(got.value, (1 + 24 * simulated) / 25, rtol=1e-3)


def test_environments_do_not_share_noise():
    """What is found for one depends neither on the others in the batch nor on its row."""
    keys, others = keys_of(4), keys_of(4, seed=1)
    others = others.at[0].set(keys[2])
    for policy in ("muzero", "gumbel"):
        search = make_search(two_steps(), True, policy=policy, num_simulations=4)
        a, b = (search(x, (), jnp.zeros(4), jnp.float32(1.0)) for x in (keys, others))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[2], b[0]), a, b)


@pytest.mark.parametrize("policy", ["muzero", "gumbel"])
def test_exploration_is_off_in_the_greedy_twin(policy):
    model = model_of(
        lambda hidden, action: jnp.zeros_like(hidden),
        lambda hidden, action: hidden,
        same_logits([0.1, 0.0, 0.0]),
    )
    for exploring, temperature in ((True, 1.0), (False, 0.0)):
        got = found(
            model,
            jnp.zeros(64),
            exploring,
            temperature,
            policy=policy,
            num_simulations=8,
        )
        assert (len({*np.asarray(got.action).tolist()}) > 1) == exploring


def test_noise_at_the_root_makes_other_actions_likely():
    """Dirichlet noise alone: few visits go elsewhere, and where differs from game to game."""
    model = model_of(
        lambda hidden, action: jnp.zeros_like(hidden),
        lambda hidden, action: hidden,
        same_logits([0.0, 0.0, 0.0]),
    )
    noise = {"dirichlet_fraction": 1.0, "dirichlet_alpha": 0.03}
    got = found(model, jnp.zeros(16), True, 0.0, num_simulations=8, **noise)
    assert (got.policy.max(-1) > 0.9).mean() > 0.5
    assert {*np.asarray(got.policy.argmax(-1)).tolist()} == {0, 1, 2}


THEIRS = {
    "muzero": partial(
        mctx.muzero_policy,
        dirichlet_fraction=0.0,
        temperature=0.0,
        qtransform=partial(mctx.qtransform_by_parent_and_siblings, epsilon=3.0),
    ),
    "gumbel": partial(
        mctx.gumbel_muzero_policy,
        gumbel_scale=0.0,
        qtransform=partial(mctx.qtransform_completed_by_mix_value, epsilon=3.0),
    ),
}


@pytest.mark.parametrize("policy", THEIRS)
def test_a_masked_search_is_mctxs(policy):
    """Without noise; the prior that is left is scaled to 1, small ranges are not stretched."""
    model, invalid = two_steps(), jnp.array([[0.0, 1.0, 0.0]])

    def evaluate(hidden):
        logits, value = model.prediction((), hidden)
        return {"prior_logits": logits, "value": value[..., 0]}

    def recurrent(params, key, action, hidden):
        hidden, reward = model.dynamics((), hidden, action)
        output = mctx.RecurrentFnOutput(
            reward=reward[..., 0], discount=jnp.full((1,), 0.9), **evaluate(hidden)
        )
        return output, hidden

    @jax.jit
    def search():
        root = mctx.RootFnOutput(embedding=jnp.zeros(1), **evaluate(jnp.zeros(1)))
        options = {"num_simulations": 16, "invalid_actions": invalid}
        found = THEIRS[policy]((), jax.random.key(0), root, recurrent, **options)
        return found.action_weights, found.search_tree.summary().value

    weights, value = search()
    masked = model._replace(
        observation_spec=masked_spec(),
        representation=lambda params, observation: observation["state"],
    )
    ours = found(
        masked,
        {"state": jnp.zeros(1), "action_mask": invalid == 0.0},
        policy=policy,
        num_simulations=16,
        discount_factor=0.9,
        least_range=3.0,
    )
    np.testing.assert_allclose(ours.policy, weights, atol=1e-6)
    np.testing.assert_allclose(ours.value, value, rtol=1e-5)


def masked_spec(dtype=bool, size=3):
    return {
        "state": specs.Array((), np.float32),
        "action_mask": specs.Array((size,), dtype),
    }


@pytest.mark.parametrize(
    ("policy", "temperatures"), [("muzero", (1.0, 1e6)), ("gumbel", (1.0,))]
)
def test_invalid_actions_are_neither_searched_nor_taken(policy, temperatures):
    model = two_steps()
    model = model._replace(
        observation_spec=masked_spec(),
        representation=lambda params, observation: observation["state"],
    )
    allowed = np.array([[True, False, True], [False, False, True], [True, True, True]])
    observation = {"state": jnp.zeros(3), "action_mask": allowed}
    search = make_search(model, True, policy=policy, num_simulations=16)
    for temperature in temperatures:
        got = search(keys_of(3), (), observation, jnp.float32(temperature))
        assert not np.asarray(got.policy)[~allowed].any()
        assert np.take_along_axis(allowed, np.asarray(got.action)[:, None], 1).all()


@pytest.mark.parametrize(
    "spec", [masked_spec(np.float32), masked_spec(size=4)], ids=["floats", "size"]
)
def test_an_action_mask_that_does_not_fit_is_refused(spec):
    model = two_steps()._replace(observation_spec=spec)
    with pytest.raises(UserError, match="action_mask is") as refused:
        muzero.make_agent(muzero.Config(), model)
    assert "\n" not in str(refused.value)


def test_each_step_halves_the_gradient_of_the_hidden_state():
    """With the same hidden state everywhere, step k adds 1/2^k of the gradient over K."""
    model = model_of(
        lambda hidden, action: jnp.zeros_like(hidden),
        lambda hidden, action: hidden,
        lambda hidden: jnp.stack([hidden, jnp.zeros_like(hidden)], -1),
    )._replace(representation=lambda w, x: w * jnp.ones_like(x))
    end, got = 4, {}
    target = jnp.broadcast_to(jnp.float32([0.9, 0.1]), (end + 1, 1, 2))
    zeros = jnp.zeros((end + 1, 1))
    rows = model_targets.Rows(
        reward=zeros,
        value=zeros,
        policy=target,
        action=zeros.astype(int),
        other_action=zeros.astype(int),
        void=zeros > 0,
        last=(jnp.arange(end + 1) > 0)[:, None] & (zeros == 0),  # one start only
        terminal=zeros > 0,
    )
    for length in (1, 2, 4):
        config = muzero.Config(unroll_steps=length)
        loss = lambda w: make_loss(config, model)(w, (zeros, rows), ()).total.sum()  # noqa: B023
        got[length] = float(jax.jit(jax.grad(loss))(jnp.float32(0.3)))
    alone = 1 / (1 + np.exp(-0.3)) - 0.9  # of the first prediction
    for length, gradient in got.items():
        halves = sum(0.5**k for k in range(1, length + 1))
        assert gradient == pytest.approx(alone * (1 + halves / length), rel=1e-4)


COSTS = {"value_cost": 0.1, "reward_cost": 3.0}


@functools.cache  # its functions are compiled once for all tests
def make(**config):
    network = muzero.make_network(
        specs.Array((3,), np.float32),
        specs.DiscreteArray(2),
        world_model.Config(hidden_size=8, max_return=10.0),
    )
    small = {"policy": "gumbel", "num_simulations": 2, "unroll_steps": 2}
    small |= {"learning_rate": 0.01, "return_steps": 2, **COSTS}
    return jitted(muzero.make_agent(muzero.Config(**small | config), network))


def some_trajectory(reward=0.0, length=4, batch_size=2):
    shape = length + 1, batch_size
    timesteps = dm_env.TimeStep(
        np.full(shape, MID),
        np.full(shape, reward, np.float32),
        np.ones(shape, np.float32),
        np.random.default_rng(1).normal(size=(*shape, 3)).astype(np.float32),
    )
    extras = Extras(
        np.full((length, batch_size, 2), 0.5, np.float32),
        np.zeros((length, batch_size), np.float32),
        np.zeros((length, batch_size), np.int32),
    )
    action = np.zeros((length, batch_size), np.int32)
    return Trajectory(timesteps, ActorOutput(action, extras), ())


@pytest.mark.parametrize(
    "reanalyse", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_updates_learn(reanalyse):
    agent = make(reanalyse=reanalyse)
    state = agent.initial_learner_state(jax.random.key(0))
    trajectory, seen = some_trajectory(reward=1.0), []
    for _ in range(30):
        state, metrics = agent.learner_step(jax.random.key(2), state, trajectory)
        seen.append(metrics)
    assert int(state.shared.updates) == 30
    assert float(seen[-1]["loss/reward"]) < 0.8 * float(seen[0]["loss/reward"])
    assert all(np.isfinite(float(x)) for x in seen[-1].values())
    moved = jax.tree.map(
        lambda a, b: (np.asarray(a) != np.asarray(b)).any(),
        agent.initial_learner_state(jax.random.key(0)).shared.params,
        state.shared.params,
    )
    assert all(jax.tree.leaves(moved))
    parts = {name: float(seen[0][f"loss/{name}"]) for name in ("policy", "value")}
    total = parts["policy"] + 0.1 * parts["value"] + 3.0 * float(seen[0]["loss/reward"])
    assert float(seen[0]["loss/total"]) == pytest.approx(total)
    # Reanalysis takes its own search's values, not those that were found when acting.
    outputs = trajectory.outputs
    extras = outputs.extras._replace(value=outputs.extras.value + 3.0)
    other = trajectory._replace(outputs=outputs._replace(extras=extras))
    losses = [
        float(agent.learner_step(jax.random.key(2), state, x)[1]["loss/value"])
        for x in (trajectory, other)
    ]
    assert (losses[0] == losses[1]) == reanalyse


def test_a_return_beyond_the_support_stops_the_run():
    agent = make(reanalyse=False)
    state = agent.initial_learner_state(jax.random.key(0))
    for reward, stops in (
        (2.0, False),
        (9.0, True),
    ):  # 2 of them in a return, at most 10
        _, metrics = agent.learner_step(
            jax.random.key(2), state, some_trajectory(reward)
        )
        assert metrics[muzero.agent.BEYOND] == stops


def test_what_follows_an_end_is_not_learned():
    """Rewards of the next episode change no target of the one that ended."""
    agent = make(reanalyse=False)
    state = agent.initial_learner_state(jax.random.key(0))
    kind = np.array([[MID], [MID], [LAST], [FIRST], [MID]]).repeat(2, axis=1)
    losses = []
    for lost in (0.0, 5.0):  # a reward at FIRST belongs to no action
        trajectory = some_trajectory()
        reward = trajectory.timesteps.reward.copy()
        reward[3] = lost
        timesteps = trajectory.timesteps._replace(step_type=kind, reward=reward)
        trajectory = trajectory._replace(timesteps=timesteps)
        _, metrics = agent.learner_step(jax.random.key(2), state, trajectory)
        losses.append(float(metrics["loss/total"]))
    assert losses[0] == losses[1]


def test_the_temperature_falls():
    agent = make(policy="muzero", total_steps=1000)
    shared = agent.initial_learner_state(jax.random.key(0)).shared
    got = [
        float(
            agent.actor_params(
                LearnerState(shared._replace(progress=jnp.float32(progress)), ())
            ).temperature
        )
        for progress in (0.0, 0.49, 0.5, 0.74, 0.75, 1.0)
    ]
    assert got == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.core
@pytest.mark.parametrize(
    "action_spec, words",
    [
        (
            specs.BoundedArray((2,), np.float32, -1, 1),
            "MuZero is for discrete actions, one choice",
        ),
        (
            specs.BoundedArray((2,), np.int32, 0, [1, 2]),
            "MuZero is for discrete actions, one choice",
        ),
    ],
    ids=["numbers", "several"],
)
def test_other_actions_are_refused(action_spec, words):
    with pytest.raises(UserError, match=words) as refused:
        muzero.make_network(specs.Array((3,), np.float32), action_spec)
    assert "\n" not in str(refused.value)


@pytest.mark.core
def test_another_kind_of_network_is_refused():
    network = networks.actor_critic(
        specs.Array((3,), np.float32), specs.DiscreteArray(2)
    )
    with pytest.raises(UserError, match="plans in a model"):
        muzero.make_agent(muzero.Config(), network)


@pytest.mark.core
@pytest.mark.parametrize(
    "changes",
    [
        {"num_simulations": 0},
        {"temperatures": ()},
        {"temperatures": (1.0, -1.0)},
        {"dirichlet_fraction": 1.5},
        {"max_depth": 0},
    ],
)
def test_impossible_hyperparameters_are_refused(changes):
    with pytest.raises(UserError, match=next(iter(changes))):
        dataclasses.replace(muzero.Config(), **changes)
