"""Bandit, umbrella and LPG's worlds: what pays, what is shown, what is drawn when."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import check
from envs_jax.bandit import Bandit
from envs_jax.lpg_cells import draw_cells, grid
from envs_jax.lpg_chain import TASKS as CHAINS
from envs_jax.lpg_chain import LPGChain
from envs_jax.lpg_grid import LPGGrid, State
from envs_jax.lpg_tasks import CENTRE_WALL, FOUR_ROOMS, SMALL, each
from envs_jax.lpg_tasks import TASKS as GRIDS
from envs_jax.umbrella import Umbrella

STAY = 4


def play(environment, policy, steps, copies):
    """Timesteps [copies, steps + 1, ...] of `policy(key, timestep) -> action`; no resets."""

    def step(carry, key):
        carry = environment.step(key, carry[0], policy(key, carry[1]))
        return carry, carry[1]

    def unroll(key):
        start = environment.initial_state(key)
        _, rest = jax.lax.scan(step, start, jax.random.split(key, steps))
        return jax.tree.map(
            lambda x, xs: jnp.concatenate([x[None], xs]), start[1], rest
        )

    keys = jax.random.split(jax.random.key(0), copies)
    return jax.device_get(jax.jit(jax.vmap(unroll))(keys))


@pytest.mark.parametrize(
    "environment",
    [
        Bandit(noise=0.1),
        Umbrella(length=1, distractors=0),
        *map(LPGChain, CHAINS),
        LPGGrid("tabular-longer"),
        LPGGrid("random-small", collect=True),
    ],
    ids=repr,
)
def test_keeps_the_protocol(environment):
    check(environment)


def test_bandit_pays_for_its_arms():
    environment = Bandit()
    check(environment, steps=10, deterministic=True)
    step = jax.vmap(environment.step, (None, None, 0))
    state, _ = environment.initial_state(jax.random.key(0))
    _, timestep = step(jax.random.key(0), state, jnp.arange(11))
    assert timestep.last().all() and not timestep.discount.any()
    np.testing.assert_array_equal(timestep.reward, environment.rewards())
    np.testing.assert_allclose(np.sort(timestep.reward), np.arange(11) / 10, atol=1e-6)


def test_bandits_differ_by_instance_even_under_vmap():
    orders = jax.vmap(lambda instance: Bandit(instance=instance).rewards())
    orders = orders(jnp.arange(20))
    np.testing.assert_array_equal(orders[3], Bandit(instance=3).rewards())
    assert len({int(order.argmax()) for order in orders}) > 5


def test_bandit_noise_has_its_size():
    timesteps = play(Bandit(noise=2.0), lambda key, timestep: 0, 1, copies=4_096)
    rewards = timesteps.reward[:, 1]
    assert abs(rewards.mean() - Bandit().rewards()[0]) < 0.13  # 4 standard errors
    assert abs(rewards.std() - 2) < 0.1


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("right", [True, False])
def test_umbrella_pays_for_the_first_action(length, right):
    def policy(key, timestep):
        rain = timestep.observation[0] == 1
        answer = jnp.where(right, rain, ~rain)
        return jnp.where(timestep.first(), answer, jax.random.bernoulli(key)) * 1

    environment = Umbrella(length, distractors=3)
    timesteps = play(environment, policy, length, copies=2_048)
    np.testing.assert_array_equal(timesteps.reward[:, -1], 1 if right else -1)
    np.testing.assert_array_equal(timesteps.last().any(0), [False] * length + [True])
    assert not timesteps.discount[:, -1].any()
    noise = timesteps.reward[:, 1:-1]
    assert (abs(noise) == 1).all() and abs(noise.sum(1).mean()) < 0.16

    rain, umbrella, remaining, *bits = np.moveaxis(timesteps.observation, -1, 0)
    assert (rain == rain[:, :1]).all() and abs(rain[:, 0].mean() - 0.5) < 0.05
    assert (umbrella[:, 1:] == (rain if right else 1 - rain)[:, 1:]).all()
    np.testing.assert_allclose(remaining[0], 1 - np.arange(length + 1) / length)
    bits = np.stack([*bits, umbrella[:, :1].repeat(length + 1, 1)])
    assert {*np.unique(bits)} == {0, 1}
    series = np.concatenate(bits, axis=1)[:, : 3 * (length + 1)].T
    np.testing.assert_allclose(series.mean(1), 0.5, atol=0.05)  # 4 standard errors
    np.testing.assert_allclose(np.corrcoef(series), np.eye(len(series)), atol=0.1)


def decode(task, observation):
    """The correct action and the first one, from the observation alone."""
    if CHAINS[task].distractors:
        return observation[..., 0], observation[..., 1]
    return observation // 2 % 2, observation % 2


@pytest.mark.parametrize("task", CHAINS)
def test_chain_reveals_the_correct_action_and_pays_for_it(task):
    def policy(key, timestep):
        correct, _ = decode(task, timestep.observation)
        answer = jnp.int32(correct)
        return jnp.where(timestep.first(), answer, jax.random.bernoulli(key)) * 1

    environment = LPGChain(task, instance=1)
    state, _ = environment.initial_state(jax.random.key(0))
    length = int(state.length)
    timesteps = play(environment, policy, length, copies=512)
    np.testing.assert_array_equal(timesteps.last().any(0), [False] * length + [True])
    np.testing.assert_array_equal(timesteps.reward[:, -1], 1)
    noise = timesteps.reward[:, 1:-1]
    if CHAINS[task].noisy:
        assert (abs(noise) == 1).all() and abs(noise.mean()) < 0.1
    else:
        assert not noise.any()

    correct, first = decode(task, timesteps.observation)
    assert (correct == correct[:, :1]).all() and abs(correct[:, 0].mean() - 0.5) < 0.1
    assert (first[:, 0] == 0).all() and (first[:, 1:] == correct[:, 1:]).all()
    if not CHAINS[task].distractors:
        steps = timesteps.observation // 4
        np.testing.assert_array_equal(steps, [range(length + 1)] * 512)


@pytest.mark.parametrize("action", [0, 1])
def test_chain_gives_the_blind_nothing(action):
    environment = LPGChain(instance=1)
    timesteps = play(environment, lambda key, timestep: action, 30, copies=2_048)
    first_last = timesteps.last().argmax(1)
    rewards = timesteps.reward[range(2_048), first_last]
    assert {*rewards.tolist()} == {-1, 1} and abs(rewards.mean()) < 0.09


@pytest.mark.parametrize("task", CHAINS)
def test_chain_lengths_belong_to_instances(task):
    def lengths(instance):
        start = jax.vmap(LPGChain(task, instance).initial_state)
        return start(jax.random.split(jax.random.key(0), 3))[0].length

    lengths = np.array(jax.vmap(lengths)(jnp.arange(500)))
    assert (lengths == lengths[:, :1]).all()
    row = CHAINS[task]
    assert {*lengths[:, 0]} == {*range(row.shortest, row.longest + 1)}


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
        for cell, direction in np.argwhere(world.beside >= 0):  # there and back again
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
    cells = jnp.int32(cells)
    return State(jnp.int32(agent), cells, jnp.full(cells.shape, present))


def many(environment, state, action, copies=4_096):
    """One step from one state with many keys."""
    keys = jax.random.split(jax.random.key(1), copies)
    step = jax.jit(jax.vmap(environment.step, (0, None, None)))
    return jax.device_get(step(keys, state, action))


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
    for action in (0, 1, 2, 3, 6):  # out of the map's upper left corner
        assert many(environment, state(0, [9, 10, 11, 12]), action, 1)[0].agent == 0
    assert many(environment, state(2, [9, 10, 11, 12]), 7, 1)[0].agent == 2  # the wall


DENSE_CELLS = [10, 30, 50, 70]  # pay 1, 1, -1, -1; the third one's may be the last


@pytest.mark.parametrize("task", ["tabular-dense", "random-dense"])
@pytest.mark.parametrize(
    "i, reward, ends", [(0, 1, 0), (1, 1, 0), (2, -1, 0.5), (3, -1, 0)]
)
def test_collecting_pays_and_may_be_the_end(task, i, reward, ends):
    before = state(DENSE_CELLS[i], DENSE_CELLS)
    after, timestep = many(LPGGrid(task), before, STAY)
    np.testing.assert_array_equal(timestep.reward, reward)
    np.testing.assert_array_equal(timestep.discount, 1 - timestep.last())
    np.testing.assert_allclose(timestep.last().mean(), ends, atol=0.04)
    returns = each(GRIDS[task])[3][i]
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
    before = before._replace(present=before.present.at[1].set(True))
    after, _ = many(LPGGrid(task), before, STAY)
    assert after.present[:, 1].all()
    share = after.present[:, [0, 2, 3]].mean(0)
    np.testing.assert_allclose(share, [0.05, 0.1, 0.5], atol=0.035)  # 4 sd
    cells = after.cells[after.present[:, 3], 3]
    if task == "tabular-dense":
        assert (cells == DENSE_CELLS[3]).all()
    else:
        assert len({*cells.tolist()}) == 121 - 2  # but for the agent's and one object's
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


def test_the_index_names_the_cell_and_what_is_there():
    environment = LPGGrid("tabular-dense")
    before = state(60, DENSE_CELLS)._replace(
        present=jnp.array([True, False, True, True])
    )
    _, timestep = many(environment, before, 5, 1_000)
    assert {*timestep.observation.tolist()} == {61 * 16 + 13, 61 * 16 + 15}
    assert environment.observation_spec().num_values == 121 * 16


def test_random_worlds_are_drawn_anew_for_every_episode():
    keys = jax.random.split(jax.random.key(0), 64)
    states, timestep = jax.vmap(LPGGrid("random-small").initial_state)(keys)
    assert len({tuple(row) for row in states.cells.tolist()}) == 64
    planes = np.array(timestep.observation).sum((1, 2))
    np.testing.assert_array_equal(planes, [[1, 2, 2]] * 64)


@pytest.mark.parametrize("task", GRIDS)
def test_rows_of_the_paper(task):
    environment, row = LPGGrid(task), GRIDS[task]
    assert environment.time_limit == row.time_limit
    timestep = jax.eval_shape(environment.initial_state, jax.random.key(0))[1]
    kinds, inner = len(row.objects), (len(row.rows), len(row.rows[0]))
    assert timestep.observation.shape == (() if row.fixed else (*inner, 1 + kinds))


def test_unknown_tasks_are_named():
    with pytest.raises(ValueError, match="'shrt'; known: short, short-noisy"):
        LPGChain("shrt")
    with pytest.raises(ValueError, match="'dense'; known: tabular-dense"):
        LPGGrid("dense")
    for wrong in (lambda: Umbrella(length=0), lambda: Bandit(arms=1)):
        with pytest.raises(ValueError, match=r"is \d; .* at least"):
            wrong()
