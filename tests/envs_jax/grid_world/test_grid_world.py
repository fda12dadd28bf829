"""Grid worlds: steps equal to MiniGrid's, layouts, pictures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import TimeLimit, make
from envs_jax.grid_world import DoorKey, Empty, FourRooms, Memory, squares
from envs_jax.grid_world.squares import (
    BALL,
    FIXED_BALL,
    FIXED_KEY,
    FLOOR,
    GOAL,
    KEY,
    LOCKED,
    LOOKS,
    PRIZE,
    TRAP,
    WALL,
    State,
)
from tests.envs_jax.grid_world.reference import RECORDED

WORLDS = {
    "Empty": Empty(6, random_start=True),
    "FourRooms": FourRooms(),
    "DoorKey": DoorKey(6),
    "Memory": Memory(9),
}
TURN_LEFT, TURN_RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, NOTHING = range(7)
UNSEEN = LOOKS


def our_looks(encoded):
    """int [...]: appearances of MiniGrid's triples [..., 3] (object, colour, state)."""
    kind, state = encoded[..., 0], encoded[..., 2]
    looks = np.select(
        [kind == k for k in (0, 1, 2, 8, 5, 6)],
        [UNSEEN, FLOOR, WALL, GOAL, KEY, BALL],
        -1,
    )
    return np.where(kind == 4, squares.OPEN + state.astype(int), looks)


def our_state(name, grid, agent, ends):
    """MiniGrid's grid [W, H, 3] and agent (column, row, direction) as a State."""
    board = our_looks(grid).T
    if name == "Memory":
        board = np.select([board == KEY, board == BALL], [FIXED_KEY, FIXED_BALL], board)
        board[ends[1], ends[0]], board[ends[3], ends[2]] = PRIZE, TRAP
    column, row, direction = (jnp.int32(x) for x in agent)
    nothing = jnp.uint8(FLOOR)
    return State(jnp.uint8(board), row, column, direction, nothing, jnp.int32(0))


@pytest.mark.parametrize("name", WORLDS)
def test_every_step_equals_minigrid(name):
    recorded = np.load(RECORDED)
    fields = [
        "grid",
        "agent",
        "ends",
        "action",
        "image",
        "direction",
        "reward",
        "terminated",
    ]
    grid, agent, ends, action, image, direction, reward, terminated = (
        recorded[f"{name}.{field}"] for field in fields
    )
    starts = [our_state(name, *start) for start in zip(grid, agent, ends, strict=True)]
    starts = jax.tree.map(lambda *x: jnp.stack(x), *starts)

    @jax.jit
    @jax.vmap
    def play(state, actions):
        key = jax.random.key(0)  # not used
        return jax.lax.scan(
            lambda state, action: WORLDS[name].step(key, state, action), state, actions
        )[1]

    timesteps = jax.device_get(play(starts, action.astype(np.int32)))
    ended = np.cumsum(terminated, axis=1) - terminated > 0  # already before this step
    planes = timesteps.observation[..., :LOOKS]
    seen = np.where(planes.any(-1), planes.argmax(-1), UNSEEN)
    wanted = our_looks(image).swapaxes(-1, -2)
    wrong = (seen != wanted).any((-1, -2))
    wrong |= timesteps.observation[:, :, 0, 0, LOOKS:].argmax(-1) != direction
    wrong |= abs(timesteps.reward - reward) > 1e-6
    wrong |= timesteps.last() != (terminated != 0)
    assert not (wrong & ~ended).any(), np.argwhere(wrong & ~ended)[:3]
    assert len(np.unique(wanted)) >= 3 and np.count_nonzero(~ended) > 1_000


def starts(world, copies=512):
    keys = jax.random.split(jax.random.key(0), copies)
    return jax.device_get(jax.jit(jax.vmap(world.initial_state))(keys)[0])


def as_shown(board):
    """A set of (row, column) for each kind of square."""
    return {
        kind: set(map(tuple, np.argwhere(board == kind))) for kind in np.unique(board)
    }


def test_door_key_worlds_can_be_solved_and_differ():
    """The key and the agent are on the near side of the door, the goal behind it."""
    states = starts(DoorKey(6))
    walls = set()
    for board, row, column in zip(states.grid, states.row, states.column, strict=True):
        found = as_shown(board)
        ((door_row, door),), ((key_row, key),) = found[LOCKED], found[KEY]
        assert (
            1 <= column < door and 1 <= key < door and (key_row, key) != (row, column)
        )
        assert board[row, column] == FLOOR and found[GOAL] == {(4, 4)} and door < 4
        walls.add((door_row, door))
    assert walls == {(row, column) for row in (1, 2, 3) for column in (2, 3)}


def test_four_rooms_are_connected_and_differ():
    states = starts(FourRooms(), copies=64)
    assert len({board.tobytes() for board in states.grid}) == 64
    for board, row, column in zip(states.grid, states.row, states.column, strict=True):
        assert board[row, column] == FLOOR and (board == GOAL).sum() == 1
        reached, edge = {(row, column)}, {(row, column)}
        while edge:
            around = {
                (r + i, c + j)
                for r, c in edge
                for i, j in ((0, 1), (1, 0), (0, -1), (-1, 0))
            }
            edge = {x for x in around if board[x] != WALL} - reached
            reached |= edge
        assert len(reached) == (board != WALL).sum()


@pytest.mark.parametrize("random_length", [False, True])
def test_memory_pays_for_the_remembered_object(random_length):
    states = starts(Memory(9, random_length))
    for board in states.grid:
        found = as_shown(board)
        cue = board[3, 1]
        ((row, column),), ((_, other),) = found[PRIZE], found[TRAP]
        beside = board[row + (1 if row > 4 else -1), column]
        assert cue == beside and column == other and cue in (FIXED_KEY, FIXED_BALL)
    ends = {int(np.argwhere(board == PRIZE)[0, 1]) for board in states.grid}
    assert len(ends) == (3 if random_length else 1)
    assert {int(board[3, 1]) for board in states.grid} == {FIXED_KEY, FIXED_BALL}


@pytest.mark.parametrize("size, seen", [(7, 3), (9, 3), (11, 2)])
def test_the_cue_is_seen_from_the_fork_of_small_memories_only(size, seen):
    world = Memory(size)
    step = jax.jit(world.step)
    key = jax.random.key(0)
    state, timestep = jax.jit(world.initial_state)(key)
    for action in [FORWARD] * (size - 3) + [TURN_LEFT] * 2:
        state, timestep = step(key, state, np.int32(action))
    objects = np.asarray(timestep.observation)[..., [KEY, BALL]]
    assert objects.sum() == seen  # two are at the fork


def test_the_reward_falls_with_time_and_the_limit_truncates():
    world = make("grid-empty", size=5)
    start, step = jax.jit(world.initial_state), jax.jit(world.step)
    state, timestep = start(jax.random.key(0))
    for action in (FORWARD, FORWARD, TURN_RIGHT, FORWARD, FORWARD):
        assert not timestep.last()
        state, timestep = step(jax.random.key(0), state, action)
    assert timestep.last() and timestep.discount == 0
    assert timestep.reward == pytest.approx(1 - 0.9 * 5 / 100)

    assert isinstance(world, TimeLimit) and world.max_steps == 100
    state, timestep = start(jax.random.key(0))
    for _ in range(100):
        assert not timestep.last()
        state, timestep = step(jax.random.key(0), state, NOTHING)
    assert timestep.last() and timestep.discount == 1 and timestep.reward == 0


def test_a_picture_shows_squares_and_the_agent():
    state, _ = jax.jit(DoorKey(6).initial_state)(jax.random.key(0))
    picture = np.asarray(jax.jit(DoorKey(6).render)(state))
    assert picture.shape == (48, 48, 3) and picture.dtype == np.uint8
    tiles = picture.reshape(6, 8, 6, 8, 3)
    red = (tiles == (255, 0, 0)).all(-1).any((1, 3))
    np.testing.assert_array_equal(np.argwhere(red), [[state.row, state.column]])
    green = (tiles == (0, 255, 0)).all(-1).any((1, 3))
    np.testing.assert_array_equal(np.argwhere(green), [[4, 4]])


@pytest.mark.parametrize(
    ("world", "size", "line"),
    [
        (Empty, 3, "size is 3; it must be at least 4"),
        (FourRooms, 8, "size is 8; it must be odd and at least 5"),
        (DoorKey, 4, "size is 4; it must be at least 5"),
        (Memory, 8, "size is 8; it must be odd and at least 7"),
    ],
)
def test_sizes_have_limits(world, size, line):
    with pytest.raises(ValueError, match=line):
        world(size)
