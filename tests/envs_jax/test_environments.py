"""Each environment is what it says: the rules, the known equal, random play."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import (
    CartPole,
    Catch,
    MemoryChain,
    Pendulum,
    TimeLimit,
    cartpole,
    pendulum,
)


def play(environment, policy, steps, copies, seed=0):
    """Timesteps [copies, steps + 1, ...] of `policy(key, timestep) -> action`; no resets."""

    def step(carry, key):
        state, timestep = environment.step(key, carry[0], policy(key, carry[1]))
        return (state, timestep), timestep

    def unroll(key):
        start = environment.initial_state(key)
        _, rest = jax.lax.scan(step, start, jax.random.split(key, steps))
        return jax.tree.map(
            lambda x, xs: jnp.concatenate([x[None], xs]), start[1], rest
        )

    keys = jax.random.split(jax.random.key(seed), copies)
    return jax.device_get(jax.jit(jax.vmap(unroll))(keys))


def random_policy(environment):
    count = environment.action_spec().num_values
    return lambda key, timestep: jax.random.randint(key, (), 0, count)


def follow_the_ball(key, timestep):
    """Catch's optimal policy, from the board alone."""
    ball = timestep.observation[:-1].any(0).argmax()
    paddle = timestep.observation[-1].argmax()
    return 1 + jnp.sign(ball - paddle)


def test_catch_can_be_solved():
    timesteps = play(Catch(), follow_the_ball, steps=9, copies=64)
    np.testing.assert_array_equal(timesteps.reward[:, :-1], 0)
    np.testing.assert_array_equal(timesteps.reward[:, -1], 1)
    np.testing.assert_array_equal(timesteps.step_type, [[0] + [1] * 8 + [2]] * 64)
    np.testing.assert_array_equal(timesteps.discount, [[1] * 9 + [0]] * 64)


def test_catch_shows_the_board():
    environment = Catch(rows=4, columns=3)
    timesteps = play(environment, lambda key, timestep: 0, steps=3, copies=64)
    boards = timesteps.observation
    balls = boards[:, 0, 0].argmax(-1)
    assert set(balls.tolist()) == {0, 1, 2}
    for board, ball, reward in zip(boards, balls, timesteps.reward, strict=True):
        expected = np.zeros((4, 4, 3))
        expected[range(4), range(4), ball] = 1  # one row a step
        expected[range(4), 3, [1, 0, 0, 0]] = 1  # stopped by the wall
        np.testing.assert_array_equal(board, expected)
        assert reward[-1] == (1 if ball == 0 else -1)


def test_catch_drops_balls_evenly():
    boards = play(Catch(), lambda key, timestep: 1, steps=1, copies=10_000).observation
    share = boards[:, 0, 0].mean(0)
    np.testing.assert_allclose(share, 0.2, atol=0.02)  # 5 standard errors


def test_catch_needs_a_board():
    with pytest.raises(ValueError, match="rows=1"):
        Catch(rows=1)


def test_cartpole_equals_gymnasium():
    reference = gymnasium.make("CartPole-v1").unwrapped
    random = np.random.default_rng(0)
    reference.reset(seed=0)
    steps = []
    for action in random.integers(0, 2, 1_000):
        before = reference.state
        after, reward, terminated, _, _ = reference.step(int(action))
        steps.append((before, action, after, reward, terminated))
        if terminated:
            reference.reset()
    before, action, after, reward, terminated = map(np.array, zip(*steps, strict=True))

    state = cartpole.State(*before.T.astype(np.float32))
    step = jax.jit(jax.vmap(CartPole().step, (None, 0, 0)))
    state, timestep = step(jax.random.key(0), state, action.astype(np.int32))
    np.testing.assert_allclose(timestep.observation, after, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(timestep.last(), terminated)
    np.testing.assert_array_equal(timestep.discount, 1 - terminated)
    np.testing.assert_array_equal(timestep.reward, reward)
    assert terminated.sum() > 20

    spec, space = CartPole().observation_spec(), reference.observation_space
    np.testing.assert_array_equal(spec.minimum, space.low)
    np.testing.assert_array_equal(spec.maximum, space.high)


def test_cartpole_starts_and_falls_as_it_should():
    environment = CartPole()
    timesteps = play(environment, random_policy(environment), steps=200, copies=4_096)
    start = timesteps.observation[:, 0]
    assert -0.05 <= start.min() < -0.0499 and 0.0499 < start.max() < 0.05
    np.testing.assert_allclose(start.mean(0), 0, atol=0.002)
    np.testing.assert_allclose(start.std(0), 0.1 / 12**0.5, atol=0.001)
    np.testing.assert_allclose(np.corrcoef(start.T), np.eye(4), atol=0.08)
    lengths = timesteps.last().argmax(1)
    assert abs(lengths.mean() - 22.3) < 0.8  # gymnasium's, 4 standard errors


def test_cartpole_without_velocities_shows_position_and_angle():
    full, masked = (
        play(CartPole(velocities), lambda key, timestep: 1, steps=3, copies=2)
        for velocities in (True, False)
    )
    np.testing.assert_array_equal(masked.observation, full.observation[..., ::2])


@pytest.mark.core
def test_pendulum_equals_gymnasium():
    reference = gymnasium.make("Pendulum-v1").unwrapped
    random = np.random.default_rng(0)
    reference.reset(seed=0)
    actions = random.uniform(-3, 3, (1_000, 1)).astype(np.float32)  # some beyond 2
    before = random.uniform((-np.pi, -8), (np.pi, 8), (1_000, 2)).astype(np.float32)
    before[:2] = [[3.1, 5], [-3.1, -5]]  # over the top, in both directions
    after, rewards = [], []
    for reference.state, action in zip(before.astype(float), actions, strict=True):
        observation, reward, *_ = reference.step(action)
        after.append(observation)
        rewards.append(reward)

    step = jax.jit(jax.vmap(Pendulum().step, (None, 0, 0)))
    state, timestep = step(jax.random.key(0), pendulum.State(*before.T), actions)
    np.testing.assert_allclose(timestep.observation, after, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(timestep.reward, rewards, rtol=1e-6, atol=1e-6)
    assert timestep.mid().all() and (timestep.discount == 1).all()
    assert abs(state.angle).max() <= np.float32(np.pi)
    assert (np.sign(state.angle[:2]) == [-1, 1]).all()

    for spec, space in (
        (Pendulum().observation_spec(), reference.observation_space),
        (Pendulum().action_spec(), reference.action_space),
    ):
        assert spec.shape == space.shape and spec.dtype == space.dtype
        np.testing.assert_array_equal(spec.minimum, space.low)
        np.testing.assert_array_equal(spec.maximum, space.high)


@pytest.mark.core
def test_pendulum_starts_anywhere_and_is_cut_off():
    def push(key, timestep):
        return jnp.ones(1)

    timesteps = play(envs_jax.make("pendulum"), push, steps=200, copies=2_048)
    np.testing.assert_array_equal(timesteps.step_type, [[0] + [1] * 199 + [2]] * 2_048)
    np.testing.assert_array_equal(timesteps.discount, 1)
    cos, sin, velocity = timesteps.observation[:, 0].T
    angle = np.arctan2(sin, cos)
    for x in (angle / np.pi, velocity):  # uniform and independent, from -1 to 1
        np.testing.assert_allclose((x.min(), x.max()), (-1, 1), atol=0.01)
        np.testing.assert_allclose((x.mean(), x.std()), (0, 3**-0.5), atol=0.05)
    assert abs(np.corrcoef(angle, velocity)[0, 1]) < 0.09  # 4 standard errors


def test_memory_chain_rewards_the_bit():
    def remember(key, timestep):
        return 1

    timesteps = play(MemoryChain(3), remember, steps=3, copies=32)
    remaining, cue = np.moveaxis(timesteps.observation, -1, 0)
    np.testing.assert_allclose(remaining, [[1, 2 / 3, 1 / 3, 0]] * 32, atol=1e-6)
    np.testing.assert_array_equal(cue[:, 1:], 0)
    assert set(cue[:, 0].tolist()) == {-1, 1}
    np.testing.assert_array_equal(timesteps.reward[:, -1], cue[:, 0])
    np.testing.assert_array_equal(timesteps.reward[:, :-1], 0)
    np.testing.assert_array_equal(timesteps.step_type, [[0, 1, 1, 2]] * 32)


def test_memory_chain_gives_the_forgetful_nothing():
    environment = MemoryChain()
    timesteps = play(environment, random_policy(environment), steps=5, copies=4_096)
    assert abs(timesteps.reward.sum(1).mean()) < 0.06  # 4 standard errors


def test_make_applies_the_time_limit():
    assert envs_jax.make("cartpole") == TimeLimit(CartPole(), 500)
    assert envs_jax.make("pendulum") == TimeLimit(Pendulum(), 200)
    assert envs_jax.make("catch", columns=7) == Catch(columns=7)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("cacth", {}, "no environment is named 'cacth'; nearest: catch; known: acrob"),
        (
            "catch",
            {"row": 3},
            "no option of catch is named 'row'; nearest: rows; known",
        ),
    ],
)
def test_make_names_what_it_does_not_know(name, options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make(name, **options)
