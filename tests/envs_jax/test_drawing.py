"""Pictures of states: small, and different for different states; drawing tools."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import (
    Acrobot,
    Bandit,
    CartPole,
    Catch,
    DeepSea,
    LPGChain,
    LPGGrid,
    MemoryChain,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    Umbrella,
    drawing,
)

ENVIRONMENTS = [
    Acrobot(),
    Bandit(),
    CartPole(),
    Catch(),
    DeepSea(),
    LPGChain(),
    LPGGrid("random-small"),
    LPGGrid("tabular-dense"),
    MemoryChain(),
    MountainCar(),
    MountainCarContinuous(),
    Pendulum(),
    Umbrella(),
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=repr)
def test_pictures_show_the_state(environment):
    spec = environment.action_spec()
    action = jnp.full(spec.shape, spec.maximum, spec.dtype)

    def step(state, key):
        state, _ = environment.step(key, state, action)
        return state, state

    @jax.jit
    def play(key):
        start, _ = environment.initial_state(key)
        states = jax.lax.scan(step, start, jax.random.split(key, 5))[1]
        alone = environment.render(jax.tree.map(lambda leaf: leaf[0], states))
        fresh, _ = environment.initial_state(jax.random.fold_in(key, 1))
        return jax.vmap(environment.render)(states), alone, environment.render(fresh)

    pictures, alone, fresh = jax.device_get(play(jax.random.key(0)))
    assert pictures.dtype == np.uint8 and pictures.shape[::3] == (5, 3)
    assert 32 <= min(pictures.shape[1:3]) and 64 <= max(pictures.shape[1:3]) <= 160
    assert (alone != pictures[0]).mean() < 0.01  # edges may differ by rounding
    if not isinstance(environment, Bandit):  # one step, one state
        assert (pictures[0] != pictures[-1]).any()
    assert (fresh != pictures[-1]).any()


def test_cells_are_squares_of_their_colours():
    board = jnp.array([[0, 1], [2, 0], [1, 1]])
    palette = (drawing.WHITE, drawing.RED, drawing.BLUE)
    picture = drawing.cells(board, palette)
    assert picture.shape == (66, 44, 3) and picture.dtype == jnp.uint8
    for row, column in np.ndindex(3, 2):
        square = picture[22 * row : 22 * row + 22, 22 * column : 22 * column + 22]
        assert (square == np.uint8([[palette[board[row, column]]]])).all()


def covered(picture):
    """bool [H, W], whether a pixel differs from the canvas."""
    return np.array(picture != drawing.canvas()).any(-1)


def test_a_disc_is_round_and_where_it_should_be():
    mask = covered(drawing.disc(drawing.canvas(), (0.25, 0.75), 0.2))
    assert abs(mask.mean() - np.pi * 0.2**2) < 0.005
    rows, columns = np.nonzero(mask)
    np.testing.assert_allclose(
        (rows + 0.5).mean() / drawing.CANVAS, 0.25, atol=0.01
    )  # y is up
    np.testing.assert_allclose((columns + 0.5).mean() / drawing.CANVAS, 0.25, atol=0.01)
    assert not covered(drawing.disc(drawing.canvas(), (0.5, 0.5), 0)).any()


@pytest.mark.parametrize("end", [(0.7, 0.2), (0.2, 0.7), (0.6, 0.5), (0.2, 0.2)])
def test_a_line_is_as_long_and_thick_as_it_should_be(end):
    mask = covered(drawing.line(drawing.canvas(), (0.2, 0.2), end, 0.1))
    area = 0.1 * np.hypot(end[0] - 0.2, end[1] - 0.2) + np.pi * 0.05**2
    assert abs(mask.mean() - area) < 0.005
    rows, columns = np.nonzero(mask)
    centre = (
        (columns + 0.5).mean() / drawing.CANVAS,
        1 - (rows + 0.5).mean() / drawing.CANVAS,
    )
    np.testing.assert_allclose(centre, (np.array(end) + 0.2) / 2, atol=0.01)
