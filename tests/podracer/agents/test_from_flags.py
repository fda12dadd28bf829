"""Agents for environments: what lies between the two fits together, in any combination."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import networks
from podracer.agents import AGENTS, algorithm, batch_ppo, from_flags, impala, ppo
from podracer.errors import UserError
from podracer.transformations import Interface

pytestmark = pytest.mark.core

BYTES = specs.BoundedArray((4, 4, 1), np.uint8, 0, 255)
WHOLE = specs.BoundedArray((3,), np.int32, 0, 5)
NUMBERS = specs.BoundedArray((3,), np.float32, -2.0, 6.0)
UNBOUNDED = specs.Array((3,), np.float32)
TORQUE = specs.BoundedArray((2,), np.float32, [-2.0, 0.0], [2.0, 1.0])
LEFT_OR_RIGHT = specs.DiscreteArray(2)
NETWORK = networks.Config(hidden_sizes=(4,), last_action=True)


def make(module, spec, action_spec, interface, frame_stack=1, network=NETWORK):
    if isinstance(action_spec, specs.BoundedArray):
        network = networks.Config(hidden_sizes=(4,))
    return from_flags.make_agent(
        from_flags.Parts(
            algorithm.of(module),
            module.Config(),
            network,
            spec,
            action_spec,
            interface,
            frame_stack,
        )
    )


def act(agent, spec, greedy=False, steps=3, batch_size=2):
    """Actions [T, B, ...] of a scan over timesteps of ones, as Anakin does it."""
    params = agent.actor_params(agent.initial_learner_state(jax.random.key(0)))
    one = jnp.ones(batch_size)
    observation = jnp.ones((batch_size, *spec.shape), spec.dtype)
    timestep = dm_env.TimeStep(jnp.ones(batch_size, jnp.int32), one, one, observation)
    actor_step = agent.greedy_actor_step if greedy else agent.actor_step

    def step(actor_state, key):
        keys = jax.random.split(key, batch_size)
        actor_state, output = actor_step(keys, params, actor_state, timestep)
        return actor_state, output.action

    keys = jax.random.split(jax.random.key(1), steps)
    return jax.lax.scan(step, agent.initial_actor_state(batch_size), keys)[1]


@pytest.mark.parametrize(
    ("spec", "interface"),
    [
        (BYTES, Interface()),
        (BYTES, Interface(scale_observations=True)),
        (BYTES, Interface(scale_observations=True, normalize_observations=True)),
        (WHOLE, Interface(normalize_observations=True)),
        (WHOLE, Interface(scale_observations=True, normalize_rewards=True)),
        (NUMBERS, Interface(True, True, True)),
    ],
)
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_every_combination_acts(spec, interface, frame_stack):
    agent = make(ppo, spec, LEFT_OR_RIGHT, interface, frame_stack)
    assert act(agent, spec).shape == (3, 2)


@pytest.mark.parametrize("module", [impala, ppo, batch_ppo])
@pytest.mark.parametrize("actions", ["scale", "clip"])
def test_environments_get_actions_within_their_bounds(module, actions):
    agent = make(module, NUMBERS, TORQUE, Interface(actions=actions))
    for greedy in (False, True):
        action = np.asarray(act(agent, NUMBERS, greedy, steps=50))
        assert (action >= TORQUE.minimum).all() and (action <= TORQUE.maximum).all()
    sampled = np.asarray(act(agent, NUMBERS, steps=50))
    assert np.ptp(sampled[..., 0]) > 1.0  # and use them


@pytest.mark.parametrize(
    ("spec", "action_spec", "interface", "line"),
    [
        (
            UNBOUNDED,
            TORQUE,
            Interface(scale_observations=True),
            "observation_spec has bounds -inf to inf.*normalize_observations",
        ),
        (
            NUMBERS,
            specs.BoundedArray((1,), np.float32, -np.inf, 1.0),
            Interface(),
            "action_spec has bounds -inf to 1.*clip_actions",
        ),
        (
            BYTES,
            LEFT_OR_RIGHT,
            Interface(normalize_observations=True),
            "observation_spec is bytes.*leave normalize_observations out",
        ),
        (
            NUMBERS,
            specs.BoundedArray((2, 2), np.float32, -1, 1),
            Interface(),
            "action_spec is .*wrap the environment",
        ),
    ],
)
def test_what_cannot_be_is_one_line(spec, action_spec, interface, line):
    with pytest.raises(UserError, match=line) as error:
        make(ppo, spec, action_spec, interface)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("agent", "name"),
    [(agent, name) for agent, module in AGENTS.items() for name in module.PRESETS],
)
def test_a_preset_is_its_agents(agent, name):
    chosen = from_flags.choose(agent, name, None, unroll_length=1, batch_size=1)
    preset = AGENTS[agent].PRESETS[name]
    assert chosen.preset == preset._replace(network=chosen.preset.network)
    default = from_flags.network_maker(None, chosen.algorithm)[1]
    assert type(chosen.preset.network) is type(default)
