"""LPG's grids: maps, moves, objects, observations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import LPGGrid, check
from envs_jax.lpg.cells import draw_cells, grid
from envs_jax.lpg.grid import State
from envs_jax.lpg.tasks import CENTRE_WALL, FOUR_ROOMS, SMALL, TASKS, each

STAY = 4


def test_maps():
    for rows, shape, free in (
        (SMALL, (5, 7), 33),
        (CENTRE_WALL, (7, 9), 56),
        (FOUR_ROOMS, (11, 11), 104),
    ):
        world = grid(rows)
        assert world.shape == shape and len(world.places) == free
        flat = "".join(rows)
        assert [flat[place] for place in world.places] == ["."] * free
        np.testing.assert_array_equal(world.beside[:, STAY], range(free))
        for cell, direction in np.argwhere(world.beside >= 0):  # there and back
            assert world.beside[world.beside[cell, direction], 8 - direction] == cell
    walls = [
        (row + 1, i + 1) for row in range(5) for i in range(7) if SMALL[row][i] == "#"
    ]
    assert walls == [(2, 3), (4, 5)]  # counted from 1


def test_cells_are_distinct_and_uniform():
    draw = jax.jit(jax.vmap(lambda key: draw_cells(key, 3, jnp.array([1, 6, 4]), 6)))
    cells = np.array(draw(jax.random.split(jax.random.key(0), 9_600)))
    counts = {}
    for triple in map(tuple, cells):
        counts[triple] = counts.get(triple, 0) + 1
    assert len(counts) == 24 and {*np.unique(cells)} == {0, 2, 3, 5}
    assert 300 < min(counts.values()) and max(counts.values()) < 500  # 400, 5 sd


def state(agent, cells, present=True):
    cells = np.int32(cells)
    return State(np.int32(agent), cells, np.full(cells.shape, present))


@functools.partial(jax.jit, static_argnums=(0, 3))
def steps(environment, state, action, copies):
    keys = jax.random.split(jax.random.key(1), copies)
    return jax.vmap(environment.step, (0, None, None))(keys, state, action)


def many(environment, state, action, copies=4_096):
    """One step from the same state with many keys."""
    return jax.device_get(steps(environment, state, action, copies))


@pytest.mark.parametrize(
    "action, row, column",
    [(0, 0, 3), (1, 0, 4), (3, 1, 3), (4, 1, 4), (5, 1, 5), (7, 2, 4), (8, 2, 5)],
)
def test_moves(action, row, column):
    environment = LPGGrid("random-very-dense")
    after, timestep = many(environment, state(11 + 4, [120]), action, copies=1)
    assert after.agent[0] == 11 * row + column
    assert timestep.observation[0, row, column, 0] == 1
    assert timestep.observation[0, 10, 10, 1] == 1 and timestep.observation.sum() == 2


def test_walls_stop():
    environment = LPGGrid("random-small")
    for action in (0, 1, 2, 3, 6):  # from the upper left corner, out of the map
        assert many(environment, state(0, [9, 10, 11, 12]), action, 1)[0].agent == 0
    assert many(environment, state(2, [9, 10, 11, 12]), 7, 1)[0].agent == 2  # the wall


DENSE_CELLS = [10, 30, 50, 70]  # pay 1, 1, -1, -1; the third may end the episode


@pytest.mark.parametrize("task", ["tabular-dense", "random-dense"])
@pytest.mark.parametrize(
    "i, reward, ends", [(0, 1, 0), (1, 1, 0), (2, -1, 0.5), (3, -1, 0)]
)
def test_collecting_pays_and_may_end_the_episode(task, i, reward, ends):
    before = state(DENSE_CELLS[i], DENSE_CELLS)
    after, timestep = many(LPGGrid(task), before, STAY)
    np.testing.assert_array_equal(timestep.reward, reward)
    np.testing.assert_array_equal(timestep.discount, 1 - timestep.last())
    np.testing.assert_allclose(timestep.last().mean(), ends, atol=0.04)
    returns = each(TASKS[task])[3][i]
    np.testing.assert_allclose(after.present[:, i].mean(), returns, atol=0.04)
    others = np.delete(np.arange(4), i)
    assert after.present[:, others].all()
    assert (after.cells[:, others] == np.array(DENSE_CELLS)[others]).all()


def test_collect_actions_reach_where_moves_would():
    environment = LPGGrid("random-very-dense", collect=True)
    moved, timestep = many(environment, state(60, [61]), 5, 1)
    assert moved.agent == 61 and timestep.reward == 0 and moved.present.all()
    stayed, timestep = many(environment, state(60, [61]), 9 + 5, 1)
    assert stayed.agent == 60 and timestep.reward == 1
    _, timestep = many(environment, state(60, [61]), 9 + STAY, 1)
    assert timestep.reward == 0
    _, timestep = many(environment, state(0, [0]), 9 + 1, 1)  # into the wall
    assert timestep.reward == 0


@pytest.mark.parametrize("task", ["tabular-dense", "random-dense"])
def test_objects_reappear_where_they_should(task):
    before = state(60, DENSE_CELLS, present=False)
    before.present[1] = True
    after, _ = many(LPGGrid(task), before, STAY)
    assert after.present[:, 1].all()
    share = after.present[:, [0, 2, 3]].mean(0)
    np.testing.assert_allclose(share, [0.05, 0.1, 0.5], atol=0.035)  # 4 sd
    cells = after.cells[after.present[:, 3], 3]
    if task == "tabular-dense":
        assert (cells == DENSE_CELLS[3]).all()
    else:
        assert (
            len({*cells.tolist()}) == 121 - 2
        )  # all but those of the agent and of one object
        assert not {60, 30} & {*cells.tolist()}


@pytest.mark.parametrize("collect", [False, True])
def test_random_objects_never_share_a_cell(collect):
    environment = LPGGrid("random-small", collect=collect)

    def step(state, key):
        action = jax.random.randint(key, (), 0, 18 if collect else 9)
        state, _ = environment.step(key, state, action)
        return state, state

    def unroll(key):
        start, _ = environment.initial_state(key)
        return jax.lax.scan(step, start, jax.random.split(key, 200))[1]

    states = jax.jit(jax.vmap(unroll))(jax.random.split(jax.random.key(0), 32))
    cells = np.where(states.present, states.cells, 100 + np.arange(4)).reshape(-1, 4)
    assert all(len({*row}) == 4 for row in cells.tolist())
    assert (
        not collect
        or (states.present & (states.cells == states.agent[..., None])).any()
    )


def test_tabular_worlds_belong_to_instances():
    def cells(instance, key):
        return LPGGrid("tabular-longer", instance).initial_state(key)[0]

    keys = jax.random.split(jax.random.key(0), 64)
    start = jax.vmap(jax.vmap(cells, (None, 0)), (0, None))
    states = jax.device_get(jax.jit(start)(jnp.arange(8), keys))
    assert (states.cells == states.cells[:, :1]).all()
    assert len({tuple(row) for row in states.cells[:, 0].tolist()}) == 8
    assert not (states.agent[..., None] == states.cells).any()
    assert all(len({*row}) > 20 for row in states.agent.tolist())


def test_the_index_encodes_the_cell_and_present_objects():
    environment = LPGGrid("tabular-dense")
    before = state(60, DENSE_CELLS)
    before.present[1] = False
    _, timestep = many(environment, before, 5, 1_000)
    assert {*timestep.observation.tolist()} == {61 * 16 + 13, 61 * 16 + 15}
    assert environment.observation_spec().num_values == 121 * 16


def test_random_worlds_are_new_in_every_episode():
    keys = jax.random.split(jax.random.key(0), 64)
    start = jax.jit(jax.vmap(LPGGrid("random-small").initial_state))
    states, timestep = jax.device_get(start(keys))
    assert len({tuple(row) for row in states.cells.tolist()}) == 64
    planes = timestep.observation.sum((1, 2))
    np.testing.assert_array_equal(planes, [[1, 2, 2]] * 64)


@pytest.mark.parametrize("task", TASKS)
def test_rows_of_the_paper(task):
    environment, row = LPGGrid(task), TASKS[task]
    assert environment.time_limit == row.time_limit
    timestep = jax.eval_shape(environment.initial_state, jax.random.key(0))[1]
    kinds, inner = len(row.objects), (len(row.rows), len(row.rows[0]))
    assert timestep.observation.shape == (() if row.fixed else (*inner, 1 + kinds))


@pytest.mark.parametrize(
    "environment",
    [LPGGrid("tabular-longer"), LPGGrid("random-small", collect=True)],
    ids=repr,
)
def test_grids_follow_the_protocol(environment):
    check(environment)


def test_an_unknown_task_is_an_error():
    with pytest.raises(ValueError, match="'dense'; known: tabular-dense"):
        LPGGrid("dense")
