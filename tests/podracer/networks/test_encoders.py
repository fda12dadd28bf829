"""Encoders: each leaf of an observation through its torso, and who sees which leaves."""

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs

from podracer import networks
from podracer.errors import UserError
from podracer.networks import encoders, modules, torsos
from podracer.observations import named, selected
from tests.jitted import drawn, jitted_network

IMAGE = specs.BoundedArray((6, 6, 2), np.uint8, 0, 255)
SPEC = {
    "camera": {"left": IMAGE, "right": IMAGE},
    "kind": specs.DiscreteArray(3),
    "state": specs.Array((4,), np.float32),
}


def some_observation(seed=0, shape=(2, 3)):
    def draw(spec):
        if isinstance(spec, specs.DiscreteArray):
            return random.integers(0, spec.num_values, shape).astype(spec.dtype)
        if spec.dtype == np.uint8:
            return random.integers(0, 256, (*shape, *spec.shape)).astype(np.uint8)
        return random.normal(size=(*shape, *spec.shape)).astype(spec.dtype)

    random = np.random.default_rng(seed)
    return jax.tree.map(draw, SPEC)


def some_timesteps(observation):
    zeros = np.zeros((2, 3), np.float32)
    return dm_env.TimeStep(np.ones((2, 3), np.int32), zeros, zeros, observation)


@pytest.mark.parametrize(
    ("shape", "torso", "expected"),
    [
        ((84, 84, 4), "auto", "shallow"),
        ((10, 10, 4), "auto", "minatar"),
        ((2, 10, 4), "auto", "mlp"),
        ((17,), "auto", "mlp"),
        ((), "auto", "mlp"),
        ((84, 84), "auto", "mlp"),
        ((84, 84, 4), "resnet", "resnet"),
        ((20, 20, 4), "shallow", "mlp"),
        ((17,), "resnet", "mlp"),
        ((84, 84, 4), "mlp", "mlp"),
    ],
)
def test_the_torso_of_a_leaf(shape, torso, expected):
    assert encoders.torso_of(shape, torso) == expected


def test_which_torso_takes_what_is_one_line():
    line = encoders.described(SPEC, "auto")
    assert line == (
        "camera.left 6x6x2: minatar; camera.right 6x6x2: minatar; kind one of 3: mlp; "
        "state 4: mlp"
    )
    assert encoders.described(specs.Array((), np.float32), "auto") == "1: mlp"


def test_features_are_those_of_separate_torsos():
    config = networks.Config(hidden_sizes=(5,))
    branch = modules.Branch(config)
    observation = some_observation()
    seen = torsos.one_hot(observation, SPEC)
    timesteps = some_timesteps(seen)
    params = drawn(branch.init, (), timesteps)
    _, features = jax.jit(branch.apply)(params, (), timesteps)

    def flat(x):
        return np.reshape(x, (6, *x.shape[2:]))

    image = modules.make_torso(config, "minatar")
    parts = [
        image.apply({"params": params["params"][name]}, flat(x))
        for name, x in zip(
            ("Convolutions_0", "Convolutions_1"), seen["camera"].values(), strict=True
        )
    ]
    vector = np.concatenate([flat(seen["kind"]), flat(seen["state"])], -1)
    parts.append(torsos.MLP((5,)).apply({"params": params["params"]["MLP_0"]}, vector))
    join = {"params": params["params"]["MLP_1"]}
    expected = torsos.MLP((5,)).apply(join, np.concatenate(parts, -1))
    np.testing.assert_allclose(flat(np.asarray(features)), expected, atol=1e-5)


def test_a_value_may_depend_on_an_image_and_a_number_at_once():
    """Where it is a sum of what each of them is worth, the differences are equal."""
    network = networks.actor_critic(
        SPEC, specs.DiscreteArray(2), networks.Config(hidden_sizes=(8,))
    )
    params, one, other = drawn(network.init), some_observation(), some_observation(1)

    def values(**leaves):
        timesteps = some_timesteps(one | leaves)
        return network.unroll(params, network.initial_memory(3), timesteps).value

    camera, state = {"camera": other["camera"]}, {"state": other["state"]}
    difference = values() - values(**camera)
    with_state = values(**state) - values(**camera, **state)
    assert (abs(difference - with_state) > 1e-5).any()


def test_images_of_one_shape_may_share_a_torso():
    def parameters(**config):
        network = networks.actor_critic(
            SPEC, specs.DiscreteArray(2), networks.Config(**config)
        )
        params = jax.eval_shape(network.init, jax.random.key(0))
        return params["params"]["shared"].keys()

    assert parameters() == {"Convolutions_0", "Convolutions_1", "MLP_0", "MLP_1"}
    assert parameters(share_images=True) == {"Convolutions_0", "MLP_0", "MLP_1"}


def test_a_brighter_background_changes_nothing_where_images_are_centered():
    dark = some_observation()
    dark["camera"] = {name: x // 2 for name, x in dark["camera"].items()}
    camera = dark["camera"] | {"left": dark["camera"]["left"] + np.uint8([100, 25])}
    bright = dark | {"camera": camera}

    def change(center_images, before, after):
        config = networks.Config(hidden_sizes=(8,), center_images=center_images)
        network = networks.actor_critic(SPEC, specs.DiscreteArray(2), config)
        params, memory = drawn(network.init), network.initial_memory(3)

        def values(observation):
            return network.unroll(params, memory, some_timesteps(observation)).value

        return abs(values(after) - values(before)).max()

    assert change(True, dark, bright) < 1e-5 < change(False, dark, bright)
    assert change(True, dark, some_observation()) > 1e-5


@pytest.mark.parametrize(
    "spec, torso", [(SPEC["state"], "auto"), (IMAGE, "mlp"), (SPEC, "mlp")]
)
def test_without_convolutions_there_is_nothing_to_center(spec, torso):
    config = networks.Config(torso, center_images=True)
    with pytest.raises(UserError, match=r"center_images is true.*no-center-images"):
        networks.actor_critic(spec, specs.DiscreteArray(2), config)


def test_bytes_of_an_mlp_are_divided_by_255():
    mlp = torsos.MLP((3,))
    ram = np.arange(12, dtype=np.uint8).reshape(2, 6) * 20
    params = drawn(mlp.init, ram)
    np.testing.assert_allclose(
        mlp.apply(params, ram), mlp.apply(params, np.float32(ram) / 255), atol=1e-6
    )


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_policy_does_not_depend_on_what_the_value_alone_sees(memory):
    config = networks.Config(
        hidden_sizes=(8,),
        memory=memory,
        memory_size=4,
        policy_sees=("state", "kind"),
        value_sees=("camera.left", "state"),
    )
    network = jitted_network(
        networks.actor_critic(SPEC, specs.DiscreteArray(4), config)
    )
    params, memory = drawn(network.init), network.initial_memory(3)
    observation, other = some_observation(), some_observation(1)

    def predict(**leaves):
        return network.unroll(params, memory, some_timesteps(observation | leaves))

    before, hidden = predict(), predict(camera=other["camera"])
    np.testing.assert_array_equal(before.policy.logits, hidden.policy.logits)
    assert (before.value != hidden.value).all()
    right = observation["camera"] | {"right": other["camera"]["right"]}
    np.testing.assert_array_equal(before.value, predict(camera=right).value)
    np.testing.assert_array_equal(before.value, predict(kind=other["kind"]).value)
    assert (before.policy.logits != predict(state=other["state"]).policy.logits).any()


def test_leaves_are_selected_by_name_or_by_the_start_of_it():
    leaves = named(SPEC)
    assert selected(SPEC, ()) is SPEC
    assert selected(SPEC, ("camera",)) == {
        x: leaves[x] for x in ("camera.left", "camera.right")
    }
    assert selected(SPEC, ("state", "camera.right")).keys() == {"camera.right", "state"}


@pytest.mark.parametrize(
    ("spec", "sees", "line"),
    [
        (
            SPEC,
            "stat",
            "is to see 'stat', but the observation has 'camera.left', .*: name",
        ),
        (SPEC, "camera.le", "is to see 'camera.le'"),
        (SPEC["state"], "state", "but the observation has one array"),
    ],
)
def test_a_leaf_that_is_not_there_is_one_line(spec, sees, line):
    config = networks.Config(policy_sees=(sees,))
    with pytest.raises(UserError, match=line):
        networks.actor_critic(spec, specs.DiscreteArray(2), config)


def test_one_torso_for_all_heads_has_one_view():
    config = networks.Config(value_sees=("state",))
    with pytest.raises(UserError, match=r"^value_sees is \('state',\).*leave it out$"):
        networks.with_heads(SPEC, config, lambda features: features)
    config = networks.Config(hidden_sizes=(8,), policy_sees=("state",))
    network = networks.with_heads(SPEC, config, lambda features: features)
    params, memory = drawn(network.init), network.initial_memory(3)
    observation, other = some_observation(), some_observation(1)
    seen, hidden = (
        network.unroll(params, memory, some_timesteps(observation | leaves))
        for leaves in ({"state": other["state"]}, {"camera": other["camera"]})
    )
    before = network.unroll(params, memory, some_timesteps(observation))
    np.testing.assert_array_equal(before, hidden)
    assert (before != seen).any()


@pytest.mark.parametrize("channels", [1, 4])
def test_an_image_whose_channels_are_in_front_is_refused(channels):
    spec = specs.BoundedArray((channels, 84, 84), np.uint8, 0, 255)
    with pytest.raises(UserError, match=r"bytes \(., 84, 84\), whose channels.*mlp$"):
        networks.actor_critic(spec, specs.DiscreteArray(2))
    networks.actor_critic(spec, specs.DiscreteArray(2), networks.Config("mlp"))
    flat = specs.BoundedArray(
        (4, 8, 8), np.uint8, 0, 255
    )  # a small grid may be anything
    networks.actor_critic(flat, specs.DiscreteArray(2))


def test_a_torso_that_suits_no_leaf_is_refused():
    with pytest.raises(UserError, match="torso is shallow, for images.*36"):
        networks.actor_critic(SPEC, specs.DiscreteArray(2), networks.Config("shallow"))
    networks.actor_critic(SPEC, specs.DiscreteArray(2), networks.Config("mlp"))
