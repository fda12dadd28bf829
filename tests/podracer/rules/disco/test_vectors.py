"""The rule against every array of the reference's two updates without a network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agent import ActorOutput, Trajectory
from podracer.networks.action_model import Predictions
from podracer.networks.policies import Categorical
from podracer.rules import disco
from podracer.rules.disco import inputs, loss, meta_network, steps, values
from podracer.rules.rule import Experience
from tests.podracer.rules.disco import shared_data

CONFIG = disco.Config(episode_ends="jump", means="plain")
RULE = disco.make_rule(CONFIG)
MOMENTS = {"m1": "mean", "m2": "mean_square", "decay_product": "bias"}


def predictions_of(given, network):
    """A network's predictions; the target network's of the next policy, which nothing reads."""
    return Predictions(
        Categorical(jnp.array(given[f"{network}_logits"])),
        *(jnp.array(given[f"{network}_{name}"]) for name in "yzq"),
        next_policy=jnp.array(given["agent_aux_pi"]),
    )


def trajectory_of(given):
    policy = Categorical(jnp.array(given["behaviour_logits"][:-1]))
    outputs = ActorOutput(jnp.array(given["actions"][:-1]), policy)
    timesteps = shared_data.timesteps(given, observation=jnp.zeros((6, 2)))
    return Trajectory(timesteps, outputs, ())


@jax.jit
def update(weights, state, predictions, trajectory):
    """What an update computes, by the names of the vectors, and the state after it."""
    # The networks' outputs play the part of their params.
    experience = Experience(trajectory, predictions, predictions, lambda params: params)
    targets, after, _ = RULE.targets(weights, state, experience)
    (total, _), gradients = jax.value_and_grad(RULE.loss, 1, has_aux=True)(
        targets, predictions, trajectory
    )
    action, behaviour = trajectory.outputs
    transitions = steps.steps(trajectory.timesteps, "jump")
    value = values.evaluate(
        predictions,
        state.target_params,
        behaviour,
        action,
        transitions,
        CONFIG.discount_factor,
        CONFIG.retrace_lambda,
    )
    seen = inputs.Inputs(
        inputs.probabilities(predictions),
        inputs.probabilities(state.target_params),
        jax.nn.softmax(behaviour.logits),
        action,
        transitions,
        value,
        values.normalize(after.advantage, value.advantage),
        values.normalize(after.advantage, value.action_advantage),
    )
    encoded = inputs.encode(weights.encoder, seen)
    of_z = [
        inputs.network(weights.encoder.z, x.z)[..., 0]
        for x in (seen.online, seen.target)
    ]
    read = meta_network.backwards(weights.backward, encoded.x, transitions.cut)
    outputs = meta_network.predict(weights, state.lifetime, encoded, transitions.cut)
    of_life = weights.lifetime
    own = inputs.encode(of_life.encoder, seen)
    y = inputs.network(of_life.encoder.y, jax.nn.softmax(outputs.y))
    cat = jnp.concatenate([own.x, outputs.embedding, y], -1)
    pooled = inputs.linear(of_life.pool, cat)
    parts = loss.terms(targets, predictions, action)
    return after, {
        "rewards": transitions.reward,
        "is_terminal": transitions.ends,
        "mask": transitions.mask,
        "v_online": value.v,
        "v_target": value.v_target,
        "q_online": value.q,
        "q_targetnet": value.q_target,
        "rho": value.rho,
        "retrace_target": value.returns,
        "adv": value.advantage,
        "normalized_adv": seen.normalized,
        "q_td": value.error,
        "normalized_q_td": value.error / values.scale(after.error)[1],
        "qv_adv": value.action_advantage,
        "normalized_qv_adv": seen.normalized_actions,
        "x_in": encoded.x,
        "act_in": inputs.of_actions(seen, *of_z),
        "act_emb": encoded.actions,
        "bwd_lstm_out": read,
        "mult_out": read
        * inputs.linear(weights.gate, state.lifetime.hidden[None])[None],
        "prev_meta_hidden": state.lifetime.hidden,
        "pi_hat": targets.policy.logits,
        "y_hat": targets.y.logits,
        "z_hat": targets.z.logits,
        "meta_input_emb": outputs.embedding,
        "meta_x_in": own.x,
        "meta_act_emb": own.actions,
        "meta_cat": cat,
        "meta_embed": pooled,
        "meta_pooled": pooled.mean((0, 1)),
        "new_meta_hidden": after.lifetime.hidden,
        "new_meta_cell": after.lifetime.cell,
        "loss_pi": parts["policy"],
        "loss_y": parts["y"],
        "loss_z": parts["z"],
        "loss_aux": parts["next_policy"],
        "loss_q": parts["q"],
        "loss_per_step": sum(loss.COSTS[name] * parts[name] for name in parts),
        "loss_total": total,
        "grad_logits": gradients.policy.logits,
        "grad_y": gradients.y,
        "grad_z": gradients.z,
        "grad_q": gradients.q,
        "grad_aux_pi": gradients.next_policy,
        "new_target_logits": after.target_params.policy.logits,
    } | {
        f"new_{short}_ema_{theirs}": getattr(getattr(after, name), ours)
        for short, name in (("adv", "advantage"), ("td", "error"))
        for theirs, ours in MOMENTS.items()
    }


@functools.cache
def both():
    """[(vectors, what we compute)] of both updates, and the states after them."""
    weights = disco.load(shared_data.path("disco_103.npz"))
    found, states = [], []
    for given in shared_data.vectors("a1_", "a2_"):
        predictions = predictions_of(given, "agent")
        if not states:
            state = RULE.initial_state(predictions_of(given, "target"))
        state, got = update(weights, state, predictions, trajectory_of(given))
        found.append((given, got))
        states.append(state)
    return found, states


@pytest.mark.core
@pytest.mark.parametrize("number", [0, 1])
def test_every_array_of_an_update(number):
    given, got = both()[0][number]
    read = {"actions", "behaviour_logits", "rewards_ts", "discounts_ts"}
    read |= {name for name in given if name.startswith(("agent_", "target_"))}
    assert {*got} == {*given} - read
    for name, array in got.items():
        shared_data.assert_close(array, given[name], name)


def test_target_outputs_are_carried_to_the_second_update():
    (_, (second, _)), (state, _) = both()
    for name, got in (
        ("target_logits", state.target_params.policy.logits),
        *((f"target_{name}", getattr(state.target_params, name)) for name in "yzq"),
    ):
        shared_data.assert_close(got, second[name], name)


def test_masked_means_are_plain_where_every_transition_is_real():
    found, states = both()
    given = found[0][0]
    weights = disco.load(shared_data.path("disco_103.npz"))
    rule = disco.make_rule(disco.Config(episode_ends="jump", means="masked"))
    predictions = predictions_of(given, "agent")
    experience = Experience(
        trajectory_of(given), predictions, predictions, lambda params: params
    )
    state = rule.initial_state(predictions_of(given, "target"))
    _, after, _ = jax.jit(
        lambda weights, state: rule.targets(weights, state, experience)
    )(weights, state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after, states[0]
    )
