"""Unrolls that are one program: they are those of the actor that steps from Python."""

import types

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer.agent import ActorOutput, LearnerState
from podracer.errors import UserError
from podracer.kernels.foreign import without_effect
from sebulba import (
    actor,
    compiled_actor,
    cores,
    host_environments,
    starting,
    transport,
)
from sebulba.host_environments.environment import Compiled, capabilities_of
from sebulba.host_environments.envpool import EnvPool, Options
from tests.sebulba.host_environments.stepping import make
from tests.sebulba.test_training import train, watcher

ATARI = {"per_life": True, "noop_max": 1}


def random_agent(action_spec, beyond=0, shape=None, dtype=None):
    """Draws integers from the keys; its memory, and what it gives, is the last reward."""
    discrete = np.issubdtype(action_spec.dtype, np.integer)
    values = action_spec.maximum + 1 + beyond if discrete else 2
    shape, dtype = shape or action_spec.shape, dtype or action_spec.dtype

    def actor_step(keys, params, actor_state, timestep):
        def draw(key):
            return jax.random.randint(key, shape, 0, values)

        action = jax.vmap(draw)(keys).astype(dtype)
        return timestep.reward + params, ActorOutput(action, actor_state)

    def learner_step(key, state, trajectory):
        return LearnerState(state.shared + 1, ()), {}

    return watcher()._replace(
        learner_step=learner_step,
        initial_actor_state=jnp.zeros,
        actor_step=actor_step,
        greedy_actor_step=actor_step,
    )


def unrolls(environment, unroll_length, number):
    """The first trajectories of the actor that is chosen for the environment."""
    split = cores.split(jax.devices()[:2])
    server = transport.ParameterServer(split.actors)
    server.publish(jax.device_put(jnp.float32(1.0), split.learners[0]), 7)
    queue = transport.TrajectoryQueue(capacity=1, max_lag=number)
    actors = starting.make_actors(
        random_agent(environment.action_spec()),
        [environment],
        unroll_length,
        split,
        [jax.random.key(3)],
        server,
        queue,
    )
    deliveries = []
    with actor.running(actors, queue):
        for _ in range(number):
            deliveries.append(jax.device_get(queue.get()))
            queue.learned()
    return deliveries


@pytest.fixture(autouse=True, scope="module")
def compiles():
    environment = make("CartPole-v1")
    if not compiled_actor.can_act(environment, jax.devices()[0]):
        pytest.skip("this jaxlib cannot call EnvPool")
    environment.close()


@pytest.mark.parametrize(
    ("name", "options", "unroll_length"),
    [
        ("CartPole-v1", {"max_episode_steps": 12}, 9),  # falls and is cut off
        ("Pendulum-v1", {"max_episode_steps": 5}, 4),
        ("FrozenLake-v1", {}, 20),
        ("MiniGrid-Empty-5x5-v0", {"max_episode_steps": 7}, 5),  # a dict
        ("MultiCVRP-v0", {}, 15),  # actions of int16; has no limit that can be set
        ("Breakout-v5", ATARI, 150),
    ],
)
def test_an_unroll_is_that_of_single_steps(monkeypatch, name, options, unroll_length):
    environment = make(name, **options)
    monkeypatch.setattr(environment, "step", None)  # Python does not step it
    compiled = unrolls(environment, unroll_length, 3)
    monkeypatch.setattr(compiled_actor, "can_act", lambda *_: False)
    stepped = unrolls(make(name, **options), unroll_length, 3)
    jax.tree.map(np.testing.assert_array_equal, compiled, stepped)
    last = np.concatenate([x.parts[0].timesteps.step_type for x in stepped]) == 2
    assert last.any()
    if name.startswith("Breakout"):
        assert sum(x.games.finished for x in compiled) > 0


def test_all_threads_trace_the_agent_once_and_each_unroll_has_one_version():
    calls = []
    agent = random_agent(make("CartPole-v1").action_spec())

    def actor_step(*inputs):
        calls.append(1)
        return agent.actor_step(*inputs)

    rows = train(
        agent._replace(actor_step=actor_step),
        lambda: make("CartPole-v1"),
        threads_per_core=2,
        devices=3,
        split=(2, 1),
        trajectories_per_report=1,
    )
    lags = [{row[f"lag_{name}"] for name in ("mean", "max")} for _, row in rows]
    assert len(calls) == 1
    assert len(lags) == 20 and all(len(lag) == 1 for lag in lags)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"beyond": 3}, r"action\[\d+\] is [234], outside the declared 0 to 1"),
        ({"dtype": np.float32}, "action has dtype float32; declared is int32"),
        ({"shape": (2,)}, r"action has shape \(2,\); declared is \(\)"),
    ],
)
def test_an_action_of_another_spec_is_one_line(change, line):
    environment = make("CartPole-v1", batch_size=64)
    agent = random_agent(environment.action_spec(), **change)
    with pytest.raises(UserError, match=f"^CartPole-v1: {line}; correct the agent"):
        [*train(agent, lambda: environment, threads_per_core=1, devices=2)]


def test_a_limit_that_a_task_ignores_is_one_line():
    environment = make("CliffWalking-v1", max_episode_steps=4)
    agent = random_agent(environment.action_spec())
    line = "^CliffWalking-v1 ignores max_episode_steps, which is 4: leave it out"
    with pytest.raises(UserError, match=line):
        [*train(agent, lambda: environment, threads_per_core=1, devices=2)]


@pytest.mark.parametrize("name", ["HalfCheetah-v4", "CartPole-v1"])
def test_others_step_from_python(monkeypatch, name):
    """Simulators with arrays of 64 bits; cores that are no CPU; an EnvPool of another age."""
    environment, cpu = make(name), jax.devices()[0]
    assert compiled_actor.can_act(environment, cpu) == (name == "CartPole-v1")
    gpu = types.SimpleNamespace(platform="gpu")
    assert not compiled_actor.can_act(environment, gpu)
    assert not compiled_actor.can_act(types.SimpleNamespace(batch_size=4), cpu)

    def of_another_age():
        raise RuntimeError("the handler's API version (0.3) is incompatible")

    monkeypatch.setattr(environment._pool, "xla", of_another_age)
    assert not compiled_actor.can_act(environment, cpu)
    environment.close()


def test_a_step_of_your_own_is_not_passed_over():
    class Halved(EnvPool):
        def step(self, action):
            timestep = super().step(action)
            return timestep._replace(reward=timestep.reward / 2)

    class Wrapper:
        def __init__(self, environment):
            self.environment = environment

        def __getattr__(self, name):
            return getattr(self.environment, name)

        step = Halved.step

    class WithSnapshot(EnvPool):
        def snapshot(self):
            return ()

    cpu = jax.devices()[0]
    inner = make("CartPole-v1")
    assert compiled_actor.can_act(inner, cpu)
    assert not compiled_actor.can_act(Wrapper(inner), cpu)
    inner.close()
    for kind in (Halved, WithSnapshot):
        environment = kind("CartPole-v1", 4, 0, 1, Options())
        assert not compiled_actor.can_act(environment, cpu)
        environment.close()


def test_what_an_environment_offers_is_asked_for_in_one_place():
    environment = make("CartPole-v1")
    assert capabilities_of(environment) == (0.0, False, False, True, False, False)
    environment.close()
    answers = types.SimpleNamespace(receive=list, send=list, patience=5.0, render=list)
    assert capabilities_of(answers) == (5.0, False, True, False, True, False)
    options = host_environments.default_options("jax:catch")
    restorable = host_environments.make("jax:catch", 2, 0, 1, options)
    assert capabilities_of(restorable) == (0.0, True, False, False, True, False)


class Doubling:
    """Your own environment: its observation doubles the last action; no end."""

    batch_size, frames_per_step = 4, 1

    def __init__(self):
        self.calls = []

    def reset(self):
        return self._timestep(np, np.zeros(4, np.float32), 0)

    def step(self, action):
        raise AssertionError("it is compiled")

    def compiled(self):
        def step(state, action):
            doubled = 2 * action.astype(jnp.float32)
            return state + 1, self._timestep(jnp, doubled, 1), (state, doubled)

        return Compiled(np.int32(0), step)

    def stepped(self, timestep, recorded):
        self.calls.append((timestep.observation, *recorded))

    def _timestep(self, arrays, observation, step_type):
        return dm_env.TimeStep(
            arrays.full(4, step_type, np.int32),
            arrays.zeros(4, np.float32),
            arrays.ones(4, np.float32),
            observation,
        )

    def observation_spec(self):
        return specs.Array((), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(3)

    def finished_games(self):
        return None

    def lost_episodes(self):
        return 0

    def close(self):
        pass


def test_your_own_environment_hears_of_all_its_steps():
    environment = Doubling()
    deliveries = unrolls(environment, 5, 3)
    for number, x in enumerate(deliveries):
        last, steps, doubled = environment.calls[number]
        (part,) = x.parts
        np.testing.assert_array_equal(steps, 5 * number + np.arange(5))
        np.testing.assert_array_equal(doubled, 2 * part.outputs.action)
        np.testing.assert_array_equal(doubled, part.timesteps.observation[1:])
        np.testing.assert_array_equal(last, doubled[-1])
    assert (np.concatenate([x.parts[0].outputs.action for x in deliveries]) > 0).any()


def test_other_effects_of_your_own_step_are_kept():
    counts = []

    class Printing(Doubling):
        def compiled(self):
            count, step = super().compiled()

            def printed(state, action):
                jax.debug.callback(lambda x: counts.append(int(x)), state, ordered=True)
                return step(state, action)

            return Compiled(count, printed)

    unrolls(Printing(), 5, 3)
    jax.effects_barrier()
    assert counts[:15] == [*range(15)]


def wrong_timestep(change):
    def step(state, action):
        state, timestep, recorded = Doubling().compiled().step(state, action)
        return state, change(timestep), recorded

    return Compiled(np.int32(0), step)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (5, r"compiled\(\) gave 5; it must give a Compiled, or None"),
        (
            Compiled({"n": np.int64(2**40)}, lambda *x: x),
            r"the state of compiled\(\)\['n'\] is int64; it must be an array of at most 32",
        ),
        (
            Compiled(np.int32(0), lambda *x: x),
            r"a step of compiled\(\) gave tuple; it must return \(state, timestep, rec",
        ),
        (
            Compiled(np.int32(0), lambda state, action: (state / 2, action, ())),
            r"the state of compiled\(\) is int32 \(\) before a step and float32 \(\) after",
        ),
        (
            wrong_timestep(lambda x: x._replace(reward=x.reward[:, None])),
            r"the timestep of compiled\(\).reward is float32 \(4,\) before a step and f",
        ),
        (
            wrong_timestep(lambda x: x._asdict()),
            r"the timestep of compiled\(\).step_type is int32 \(4,\) before a step and m",
        ),
    ],
)
def test_what_is_no_compiled_step_is_one_line(monkeypatch, given, line):
    environment = Doubling()
    monkeypatch.setattr(environment, "compiled", lambda: given)
    with pytest.raises(UserError, match=f"^Doubling: {line}") as error:
        unrolls(environment, 5, 1)
    assert "\n" not in str(error.value)


def test_a_step_runs_without_compiling():
    """For debugging: JAX_DISABLE_JIT."""
    with jax.disable_jit():
        simulate = without_effect(Doubling().compiled().step)
        state, timestep, _ = simulate(np.int32(4), np.ones(4, np.int32))
    assert (int(state), timestep.observation.tolist()) == (5, [2.0] * 4)
