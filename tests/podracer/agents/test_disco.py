"""Disco103's agent: its network, its rule file, and two whole updates of the reference."""

import dataclasses
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

import anakin.command.subcommands as anakin
import podracer
import sebulba.command.subcommands as sebulba
from podracer import rules
from podracer.agent import ActorOutput, LearnerState, Trajectory
from podracer.agents import disco, learned_rule
from podracer.errors import UserError
from podracer.networks.action_model import Config
from podracer.networks.policies import Categorical
from podracer.rules.disco import weights
from podracer.trained import loading
from tests import disco_files
from tests.jitted import jitted
from tests.podracer.rules.disco import shared_data
from tests.podracer.rules.experience import BATCH_SIZE, LENGTH, some_trajectory

ACTIONS = specs.DiscreteArray(3)
NETWORK = Config(hidden_sizes=(), embedding_size=8, model_size=4, head_size=4)
PLACES = {  # of the reference's parameters in ours
    "~_embedding_pass/torso/~/linear_0": "embedding",
    "~_head_pass/torso_head/~/linear_0": "policy_head",
    "~_head_pass/torso_head_1/~/linear_0": "y_head",
    "linear": "model/root",
    "action_cond/linear": "model",
    "mlp/~/linear_0": "z_hidden",
    "mlp/~/linear_1": "z_head",
    "mlp_1/~/linear_0": "next_policy_hidden",
    "mlp_1/~/linear_1": "next_policy_head",
    "mlp_2/~/linear_0": "q_hidden",
    "mlp_2/~/linear_1": "q_head",
}


def spec(*shape):
    return specs.Array(shape, np.float32)


def params_of(arrays):
    """Our parameters from the reference's."""
    params = {}
    for theirs, ours in PLACES.items():
        node = params
        for part in ours.split("/"):
            node = node.setdefault(part, {})
        for name, its in (("kernel", "w"), ("bias", "b")):
            node[name] = jnp.array(arrays[f"mlp/{theirs}/{its}"])
    return {"params": params}


def assert_params_close(got, arrays):
    expected = params_of(arrays)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for (path, x), y in zip(
        jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True
    ):
        shared_data.assert_close(x, y, jax.tree_util.keystr(path))


def trajectory_of(given):
    policy = Categorical(jnp.array(given["behaviour_logits"][:-1]))
    outputs = ActorOutput(jnp.array(given["actions"][:-1]), policy)
    timesteps = shared_data.timesteps(given, jnp.array(given["obs"]))
    return Trajectory(timesteps, outputs, ((),))


def test_two_updates_of_a_whole_agent():
    names = "b0_params/", "b1_params/", "b2_params/", "b1_grad/", "b2_target_params/"
    *after, gradient, target = shared_data.vectors(*names)
    config = disco.Config(
        update_rule=shared_data.path("disco_103.npz"),
        episode_ends="jump",
        means="plain",
    )
    network = disco.make_network(spec(4), ACTIONS, NETWORK)
    agent = jitted(
        learned_rule.make_agent(  # not the agent's own, which makes trajectories jump
            rules.disco.make_rule(config),
            disco.read_rule(config),
            network,
            disco.make_optimizer(config),
            learning_rate=1e-2,
        )
    )
    unroll = jax.jit(network.unroll)
    # Its parameters and no more; the state around them is that of any start.
    state = agent.initial_learner_state(jax.random.key(0))
    params = params_of(after[0])
    assert jax.tree.structure(state.shared.params) == jax.tree.structure(params)
    rule_state = state.shared.rule_state._replace(
        target_params=jax.tree.map(jnp.copy, params)
    )
    state = LearnerState(
        state.shared._replace(params=params, rule_state=rule_state), ()
    )
    for number, given in enumerate(shared_data.vectors("b1_", "b2_"), 1):
        trajectory = trajectory_of(given)
        seen = unroll(params, ((),), trajectory.timesteps)
        for name, got in (
            ("agent_logits", seen.policy.logits),
            ("agent_aux_pi", seen.next_policy),
            ("agent_q_bins290_310", seen.q[..., 290:311]),
            ("agent_y_head8", seen.y[..., :8]),
            ("agent_z_head8", seen.z[..., :8]),
        ):
            shared_data.assert_close(got, given[name], name)
        state, metrics = agent.learner_step(jax.random.key(0), state, trajectory)
        params, opt_state, rule_state = state.shared
        for name, got in (
            ("log_total_loss", metrics["loss/total"]),
            ("log_pi_loss", metrics["loss/policy"]),
            ("log_aux_kl_loss", metrics["loss/next_policy"]),
            ("log_q_loss", metrics["loss/q"]),
            ("log_q_target", metrics["rule/returns"]),
            ("log_td", metrics["rule/error"]),
            ("log_normalized_td", metrics["rule/normalized_error"]),
            ("log_global_gradient_norm", metrics["gradient_norm"]),
            ("new_meta_hidden", rule_state.lifetime.hidden),
            ("new_meta_cell", rule_state.lifetime.cell),
        ):
            shared_data.assert_close(got, given[name], name)
        if number == 1:  # Adam's mean is a tenth of its first gradient
            first = jax.tree.map(lambda x: 10.0 * x, opt_state[0].mu)
            assert_params_close(first, gradient)
        assert_params_close(params, after[number])
    assert_params_close(rule_state.target_params, target)


def test_adams_steps_are_clipped_element_by_element():
    optimizer = disco.make_optimizer(disco.Config())
    # A large gradient late in life: Adam's step is (1 - b1) / sqrt(1 - b2) = 3.2.
    adam, rest = optimizer.init(jnp.zeros(2))
    adam = adam._replace(count=jnp.int32(1_000_000))
    gradient = jnp.array([1e-3, -1.0])
    unclipped, _ = optax.scale_by_adam().update(gradient, adam)
    np.testing.assert_allclose(unclipped, [3.16, -3.16], rtol=0.01)
    step, _ = optimizer.update(gradient, (adam, rest))
    np.testing.assert_array_equal(step, [1.0, -1.0])


def test_what_the_agent_cannot_do_is_refused():
    recurrent = dataclasses.replace(NETWORK, memory="gru")
    network = disco.make_network(spec(4), ACTIONS, recurrent)
    with pytest.raises(UserError, match="episode_ends is jump, where a recurrent"):
        disco.make_agent(disco.Config(episode_ends="jump"), network)
    with pytest.raises(UserError, match="update_rule is missing"):
        disco.pinned(disco.Config(), NETWORK)


def test_a_run_resumes_with_its_own_rule_only(tmp_path):
    path = tmp_path / "rule.npz"
    shutil.copy(disco_files.random_rule(0), path)
    pinned = disco.pinned(disco.Config(update_rule=path), NETWORK)
    assert disco.pinned(pinned, NETWORK) == pinned
    disco.read_rule(pinned)
    shutil.copy(disco_files.random_rule(1), path)
    with pytest.raises(UserError, match="the rule file has changed"):
        disco.read_rule(pinned)


def test_weights_are_constants_of_the_agent():
    config = disco.Config(update_rule=disco_files.random_rule())
    network = disco.make_network(spec(4), ACTIONS, NETWORK)
    agent = disco.make_agent(config, network)
    state = jax.eval_shape(agent.initial_learner_state, jax.random.key(0))
    assert isinstance(state.shared, learned_rule.Shared)
    params = sum(x.size for x in jax.tree.leaves(state.shared.params))
    carried = sum(x.size for x in jax.tree.leaves(state))
    # Parameters, Adam's two copies and its count, target; lifetime, two times three moments.
    assert carried == 4 * params + 1 + 256 + 6
    assert carried < sum(np.prod(shape) for shape in weights.SHAPES.values())


@pytest.mark.slow
def test_a_recurrent_agent_replays_its_memory():
    """The learner's policy is the actor's where neither params nor memory differ."""
    recurrent = dataclasses.replace(NETWORK, memory="lstm", memory_size=4)
    config = disco.Config(update_rule=disco_files.random_rule())
    network = disco.make_network(spec(3), ACTIONS, recurrent)
    agent = jitted(disco.make_agent(config, network))
    state = agent.initial_learner_state(jax.random.key(0))
    random = np.random.default_rng(0)
    memory = jax.tree.map(
        lambda x: jnp.array(random.normal(size=x.shape), x.dtype),
        agent.initial_actor_state(BATCH_SIZE),
    )
    timesteps = some_trajectory(0).timesteps
    keys, outputs, inner = jax.random.split(jax.random.key(1), BATCH_SIZE), [], memory
    for t in range(LENGTH):
        row = jax.tree.map(lambda x, t=t: x[t], timesteps)
        params = agent.actor_params(state)
        inner, output = agent.actor_step(keys, params, inner, row)
        outputs.append(output)
    outputs = jax.tree.map(lambda *x: jnp.stack(x), *outputs)
    for start, same in ((memory, True), (agent.initial_actor_state(4), False)):
        trajectory = Trajectory(timesteps, outputs, start)
        _, metrics = agent.learner_step(jax.random.key(2), state, trajectory)
        assert (abs(float(metrics["rho"]) - 1.0) < 1e-6) == same


COMMON = "--agent disco --update-rule rule.npz --network.hidden-sizes 8 --quiet " + (
    "--network.embedding-size 8 --network.model-size 4 --network.head-size 4 --run run "
)
REPLAY = "--replay.capacity 16 --replay.samples-per-insert 2 --replay.minimum-fill 8 "
IN = {
    anakin: f"--env catch --preset catch --cores 2 --updates-per-report 5 --unroll-length 5 {COMMON} {REPLAY}",
    sebulba: "--env jax:catch --actor-cores 1 --learner-cores 1 --threads-per-core 1 "
    f"--unroll-length 5 --batch-size 2 {COMMON} --network.memory gru ",
}


def updates(checkpoint):
    return int(checkpoint.name)


@pytest.mark.slow
@pytest.mark.parametrize("command", [anakin, sebulba], ids=["anakin", "sebulba"])
def test_a_run_trains_resumes_and_plays(command, tmp_path, monkeypatch):
    """Resumed with all of its state: the lifetime, the target and the replayed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("podracer.parallel.use_cpu_cores", lambda *_, **__: None)
    shutil.copy(disco_files.random_rule(), "rule.npz")
    flags = "--total-steps 150 --checkpoint.steps 50 --checkpoint.keep 3"
    command.train([*IN[command].split(), *flags.split()])
    shutil.copytree("run", "whole")
    *_, before, last = sorted(Path("run/checkpoints").glob("*[0-9]"), key=updates)
    shutil.rmtree(last)
    command.train(["--resume", "run"])
    assert loading.restore("run").updates == loading.restore("whole").updates
    if command is anakin:  # Sebulba's actors may run ahead
        assert updates(before) == 10  # of 15: there was something to learn
        resumed, whole = (loading.restore(x).params for x in ("run", "whole"))
        jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    (tmp_path / "rule.npz").unlink()  # playing needs no rule
    assert podracer.load("run")(np.zeros((10, 5), np.float32)) in (0, 1, 2)


def test_a_file_that_is_no_such_rule_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(anakin.parallel, "use_cpu_cores", lambda *_, **__: None)
    (tmp_path / "rule.npz").write_bytes(b"broken")
    with pytest.raises(UserError, match="^rule.npz: no .npz file, or damaged") as error:
        anakin.train(IN[anakin].split())
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_presets():
    """`catch` is the reference's notebook: 58 frames an update, here 56."""
    preset = disco.PRESETS["catch"]
    assert preset.unroll_length + 1 == 29 and preset.batch_size == 2
    assert preset.config.learning_rate == 1e-2
    replay = preset.replay
    assert (replay.capacity, replay.minimum_fill, replay.fresh) == (1024, 64, False)
    assert replay.samples(preset.batch_size) == 64
