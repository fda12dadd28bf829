"""LPG's worlds as one distribution: what is drawn, padding, actions, observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import LPGGrid, batched, check
from envs_jax.lpg import FAMILIES, TaskDistribution

MIXED = ("grid-random-small", "chain-distractor", "grid-tabular-longer", "chain-short")


def drawn(tasks, count=64):
    return jax.jit(jax.vmap(tasks.sample))(jax.random.split(jax.random.key(0), count))


def play(tasks, drawn, steps, policy):
    """Timesteps [N, steps, 4, ...] of 4 environments of each of N tasks, and actions."""

    def one(task, key):
        environment = batched(tasks.environment(task))
        first = environment.initial_state(jax.random.split(key, 4))

        def step(carry, key):
            state, timestep = carry
            action = policy(key, timestep)
            after = environment.step(jax.random.split(key, 4), state, action)
            return after, (timestep, action)

        return jax.lax.scan(step, first, jax.random.split(key, steps))[1]

    keys = jax.random.split(jax.random.key(1), len(drawn.family))
    return jax.device_get(jax.jit(jax.vmap(one))(drawn, keys))


@pytest.fixture(scope="module")
def mixed():
    """256 tasks of four families, and 40 random steps in them."""
    tasks = TaskDistribution(MIXED)
    found = drawn(tasks, 256)

    def anything(key, timestep):
        return jax.random.randint(key, (4,), 0, 18)

    return jax.device_get(found), *play(tasks, found, 40, anything)


def test_each_lifetime_draws_its_family_actions_cells_and_length(mixed):
    tasks, *_ = mixed
    assert (np.bincount(tasks.family) > 40).all()  # 64 of each
    collect = tasks.world.collect[tasks.family % 2 == 0]
    assert 0.3 < collect.mean() < 0.7
    cells = tasks.cells[tasks.family == 2]
    assert cells.shape[1] == 6 or cells.shape[1] == 7
    assert len({tuple(x) for x in cells.tolist()}) == len(cells)
    lengths = tasks.length[tasks.family == 3]
    assert lengths.min() >= 5 and lengths.max() <= 30 and len({*lengths.tolist()}) > 15


def test_observations_are_of_the_family(mixed):
    tasks, timesteps, _ = mixed
    seen, spec = timesteps.observation, TaskDistribution(MIXED).observation_spec()
    indexed = np.isin(tasks.family, (2, 3))
    assert (seen["index"][~indexed] == 0).all() and (seen["index"][indexed] > 0).all()
    assert seen["index"].max() < spec["index"].num_values == 56 * 128 + 1
    assert seen["features"].shape[-1] == 5 * 7 * 3
    assert (seen["features"][indexed] == 0).all()
    grids = seen["features"][tasks.family == 0].reshape(-1, 35, 3)
    assert (grids[..., 0].sum(-1) == 1).all() and (grids.sum((1, 2)) <= 5).all()
    bits = seen["features"][tasks.family == 1]
    assert (bits[..., 22:] == 0).all() and {*np.unique(bits[..., :22])} == {0, 1}
    chain = seen["index"][tasks.family == 3] - 1
    assert (chain[timesteps.first()[tasks.family == 3]] // 4 == 0).all()


def test_episodes_end_as_their_family_says(mixed):
    tasks, timesteps, _ = mixed
    last, steps = timesteps.last(), np.arange(40)[None, :, None]
    chains = np.isin(tasks.family, (1, 3))
    ends = steps == tasks.length[:, None, None]
    lengths = tasks.length[chains]
    at = np.where(lengths < 40, last[chains].argmax(1).T, lengths)
    assert (at == lengths).all()
    assert (last & ends)[chains].any() and (abs(timesteps.reward[chains]) <= 1).all()
    assert (timesteps.reward[chains][~last[chains]] == 0).all()
    assert (timesteps.discount[last] == 0).all()  # none is truncated so early


def test_surplus_actions_repeat_the_others(mixed):
    tasks, timesteps, action = mixed
    for family, states in ((0, 35), (2, 0)):
        chosen = (tasks.family == family) & ~tasks.world.collect
        seen = {x: y[chosen] for x, y in timesteps.observation.items()}
        if states:
            agent = seen["features"].reshape(*seen["index"].shape, 35, 3)[..., 0]
            cell = agent.argmax(-1)
        else:
            cell = (seen["index"] - 1) // 128
        moved = (cell[:, 1:] != cell[:, :-1]) & ~timesteps.first()[chosen][:, 1:]
        assert moved[action[chosen][:, :-1] >= 9].mean() > 0.4
        assert not moved[action[chosen][:, :-1] % 9 == 4].any()


def test_a_time_limit_truncates():
    tasks = TaskDistribution(("grid-tabular-sparse",), "never")

    def stay(key, timestep):
        return jnp.full(4, 4)

    timesteps, _ = play(tasks, drawn(tasks, 8), 60, stay)
    last = timesteps.last()
    assert (last.argmax(1) == 50).all() and (timesteps.discount[last] == 1).all()
    assert timesteps.first()[:, 51].all()


@pytest.mark.parametrize("name", ["tabular-dense", "random-small"])
@pytest.mark.parametrize("collect", [False, True])
def test_alone_it_is_the_environment_itself(name, collect):
    tasks = TaskDistribution((f"grid-{name}",), "always" if collect else "never")
    task = jax.jit(tasks.sample)(jax.random.key(3))
    mine, theirs = tasks.environment(task), LPGGrid(name, collect=collect)
    state, timestep = jax.jit(mine.initial_state)(jax.random.key(0))
    step, other_step = jax.jit(mine.step), jax.jit(theirs.step)
    number = tasks.action_spec().num_values
    actions = np.random.default_rng(0).integers(0, number, 12, np.int32)
    other = state.grid
    for key, action in zip(
        jax.random.split(jax.random.key(1), 12), actions, strict=True
    ):
        state, timestep = step(key, state, action)
        other, expected = other_step(key, other, action)
        assert timestep.reward == expected.reward
        seen = np.array(expected.observation).reshape(-1)
        seen = seen + 1 if name == "tabular-dense" else seen
        np.testing.assert_array_equal(np.reshape(timestep.observation, -1), seen)
        np.testing.assert_array_equal(state.grid.present, other.present)


def test_the_protocol():
    tasks = TaskDistribution(("chain-short", "grid-random-small-sparse"))
    check(tasks.environment(jax.jit(tasks.sample)(jax.random.key(0))))


@pytest.mark.core
def test_specs_and_errors():
    assert TaskDistribution(("chain-short",)).action_spec().num_values == 2
    assert TaskDistribution(("chain-long",)).observation_spec().num_values == 205
    assert TaskDistribution(FAMILIES, "never").action_spec().num_values == 9
    random = TaskDistribution(("grid-random-dense", "grid-random-small"))
    assert random.observation_spec().shape == (11 * 11 * 4,)
    with pytest.raises(ValueError, match="'grid-dense'.*known: grid-tabular-dense"):
        TaskDistribution(("grid-dense",))
