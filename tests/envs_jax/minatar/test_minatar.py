"""MinAtar's games: equal to MinAtar in every step, and as hard for a random policy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import AutoReset, minatar
from tests.envs_jax.minatar.reference import (
    GAMES,
    RAMPING,
    RECORDED,
    draws,
    runs,
    unpack,
)


def fed(constructor, **options):
    """The game, given its random draws in place of keys."""
    attributes = {"draw": lambda self, key: key, "__hash__": object.__hash__}
    return type("Fed", (constructor,), attributes)(**options)


@functools.partial(jax.jit, static_argnums=0)
def play(name, ramping, mortal, fed_draws, actions):
    """Timesteps [steps, ...] from FIRST on; unless `mortal`, play continues after LAST."""
    options = {"ramping": ramping} if name in RAMPING else {}
    machine = AutoReset(fed(GAMES[name], **options))

    def step(state, inputs):
        draws, action, first = inputs
        state = state._replace(last=first | (state.last & mortal))
        return machine.step(draws, state, action)

    state, _ = machine.initial_state(jax.tree.map(lambda leaf: leaf[0], fed_draws))
    first = jnp.arange(len(actions)) == 0
    return jax.lax.scan(step, state, (fed_draws, actions, first))[1]


@pytest.mark.parametrize("name", GAMES)
def test_every_step_equals_minatar(name):
    recorded = np.load(RECORDED)
    action, packed, reward, over = (
        recorded[f"{name}.{field}"] for field in ("action", "planes", "reward", "over")
    )
    each = [draws(name, run) for run in range(len(action))]
    together = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    ramping, mortal = np.array(runs(name)).T
    mortal |= name == "breakout"
    timesteps = jax.device_get(
        jax.vmap(functools.partial(play, name))(
            ramping, mortal, together, action.astype(np.int32)
        )
    )

    planes = unpack(packed, len(GAMES[name].channels))
    assert timesteps.observation.dtype == np.bool_  # as the original
    wrong = (timesteps.observation != planes).any((2, 3, 4))
    wrong |= (timesteps.reward != reward) | (timesteps.last() != (over != 0))
    assert not wrong.any(), f"first in (run, step) {np.argwhere(wrong)[0]}"
    np.testing.assert_array_equal(timesteps.discount, 1 - (over != 0))
    assert reward[1:].sum() > 20 and over[0].any()


# Mean returns of 1,000 random episodes of the original, with 95 % intervals: all six
# actions, sticky with probability 0.1.
RANDOM = {
    "asterix": (0.507, 0.027),
    "breakout": (0.532, 0.024),
    "freeway": (0.150, 0.038),
    "seaquest": (0.115, 0.013),
    "space_invaders": (2.890, 0.073),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_a_random_policy_has_the_mean_return_of_the_original(name):
    environment, copies = AutoReset(GAMES[name]()), 512
    batched = jax.vmap(environment.step)

    def step(carry, key):
        state, episode_return, over = carry
        act_key, step_key = jax.random.split(key)
        action = jax.random.randint(act_key, (copies,), 0, 6)
        state, timestep = batched(jax.random.split(step_key, copies), state, action)
        reward = jnp.where(over, 0.0, timestep.reward)
        return (state, episode_return + reward, over | timestep.last()), None

    @jax.jit
    def play(key):
        start_key, run_key = jax.random.split(key)
        keys = jax.random.split(start_key, copies)
        state, _ = jax.vmap(environment.initial_state)(keys)
        carry = state, jnp.zeros(copies), jnp.zeros(copies, bool)
        return jax.lax.scan(step, carry, jax.random.split(run_key, 2_600))[0][1:]

    returns, over = jax.device_get(play(jax.random.key(0)))
    mean, interval = RANDOM[name]
    assert over.mean() > 0.99
    assert abs(returns.mean() - mean) < interval + 2.5 * returns.std() / copies**0.5


@pytest.mark.parametrize("name", GAMES)
def test_a_picture_shows_the_player(name):
    game = GAMES[name]()

    @jax.jit
    def start():
        state, timestep = game.initial_state(jax.random.key(0))
        return timestep, game.render(state)

    timestep, picture = jax.device_get(start())
    assert picture.shape == (80, 80, 3) and picture.dtype == np.uint8
    seen = timestep.observation.any(-1)
    np.testing.assert_array_equal(picture.any(-1)[::8, ::8], seen)


def test_sticky_actions_are_a_probability():
    with pytest.raises(
        ValueError, match="sticky_actions is 1.5; a probability is 0 to 1"
    ):
        minatar.Breakout(sticky_actions=1.5)
