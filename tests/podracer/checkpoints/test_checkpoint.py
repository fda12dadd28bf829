"""Checkpoints: what comes back, what is kept, and what is damaged."""

import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import parallel
from podracer.checkpoints.checkpoint import Checkpoints, Config
from podracer.checkpoints.checksums import FILE as CHECKSUMS
from podracer.errors import UserError

pytestmark = pytest.mark.core


class State(NamedTuple):
    shared: Any
    local: Any
    key: jax.Array
    updates: jax.Array


LAYOUT = State(parallel.SHARED, parallel.LOCAL, parallel.SHARED, parallel.SHARED)


def make_state(updates, cores=2, size=3):
    """A state that tells how far it is."""

    def start(key):
        count = jnp.uint32(updates)
        whole = jnp.full((size,), count, jnp.float32)
        shared = {"params": [whole, ()], "step": count.astype(jnp.int32)}
        shared |= {"nothing": jnp.zeros((0, 2))}
        own = jax.random.uniform(parallel.core_key(key), (4,))
        return State(shared, (own + count,), key, count)

    mesh = parallel.make_mesh(cores)
    make = parallel.over_cores(start, mesh, (parallel.SHARED,), LAYOUT)
    return make(jax.random.key(7))


def save(folder, *numbers, returns=None, **options):
    with Checkpoints(folder, Config(**options)) as checkpoints:
        for n in numbers:
            metrics = {"steps": 10 * n, "episode_return": (returns or {}).get(n, 0.0)}
            checkpoints.save(make_state(n), metrics)


def restored(folder, **state):
    fresh = make_state(0, **state)
    return Checkpoints(folder).restore(fresh, LAYOUT), fresh


def names(folder):
    return sorted(int(path.name) for path in folder.iterdir())


def test_what_was_saved_comes_back_where_it_lay(tmp_path):
    save(tmp_path / "all", 5)
    after, fresh = restored(tmp_path / "all")
    wanted = make_state(5)
    assert jax.tree.structure(after) == jax.tree.structure(wanted)
    for x, y, z in zip(*map(jax.tree.leaves, (after, wanted, fresh)), strict=True):
        assert x.dtype == y.dtype and x.sharding == z.sharding
        assert bool(jnp.all(x == y))
    assert bool(jnp.all(jax.random.bits(after.key) == jax.random.bits(wanted.key)))


def test_a_state_may_be_used_up_after_it_is_saved(tmp_path):
    state, change = (
        make_state(1),
        jax.jit(lambda s: jax.tree.map(add_one, s), donate_argnums=0),
    )
    with Checkpoints(tmp_path / "all") as checkpoints:
        checkpoints.save(state, None)
        for _ in range(50):
            state = change(state)
        jax.block_until_ready(state)
    np.testing.assert_array_equal(restored(tmp_path / "all")[0].shared["params"][0], 1)


def add_one(x):
    return x if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x + 1


@pytest.mark.parametrize("cores", [1, 4])
def test_on_other_cores_what_belongs_to_one_core_starts_afresh(tmp_path, cores):
    save(tmp_path / "all", 5)
    after, fresh = restored(tmp_path / "all", cores=cores)
    np.testing.assert_array_equal(after.shared["params"][0], 5)
    np.testing.assert_array_equal(after.local[0], fresh.local[0])


def test_the_newest_and_the_best_are_kept(tmp_path):
    save(tmp_path / "all", 1, 2, 3, 4, 5, returns={2: 9.0, 4: np.nan}, keep=2)
    assert names(tmp_path / "all") == [2, 4, 5]


def test_a_run_that_goes_on_removes_what_it_kept_before(tmp_path):
    save(tmp_path, 1, 2, 3, returns={1: 5.0}, keep=1)
    save(tmp_path, 4, 5, keep=1)
    assert names(tmp_path) == [1, 5]


def test_saving_the_same_twice_is_saving_it_once(tmp_path):
    save(tmp_path / "all", 5)
    save(tmp_path / "all", 5)
    assert names(tmp_path / "all") == [5]


def test_an_optional_field_that_is_missing_or_other_is_the_fresh_one(tmp_path):
    layout = LAYOUT._replace(local=parallel.OPTIONAL)

    def kept(before, fresh):
        """What is there of one that was saved."""
        folder = tmp_path / f"{jax.tree.map(jnp.shape, (before, fresh))}"
        with Checkpoints(folder) as checkpoints:
            checkpoints.save(make_state(5)._replace(local=before), None)
        state = make_state(0)._replace(local=fresh)
        after = Checkpoints(folder).restore(state, layout)
        assert int(after.updates) == 5
        return after.local

    key, two, three = jax.random.key(1), jnp.ones(2), jnp.zeros(3)
    assert kept((key, two), ()) == ()
    assert kept((), (two,))[0] is two
    assert kept((key, two), (key, three))[1] is three
    after = kept((key, two), (jax.random.key(0), jnp.zeros(2)))
    assert bool(after[0] == key) and bool(jnp.all(after[1] == two))


def test_counts_of_other_metrics_start_anew(tmp_path):
    """They are LOCAL as a whole: an agent that has gained a metric resumes its runs."""
    save(tmp_path / "all", 5)
    fresh = make_state(0)
    more = fresh._replace(local=(*fresh.local, *fresh.local))
    after = Checkpoints(tmp_path / "all").restore(more, LAYOUT)
    assert int(after.updates) == 5 and len(after.local) == 2
    jax.tree.map(np.testing.assert_array_equal, after.local, more.local)


def test_an_older_one_may_lack_an_optional_field(tmp_path):
    class More(NamedTuple):
        shared: Any
        local: Any
        key: jax.Array
        updates: jax.Array
        more: Any = ()

    save(tmp_path / "all", 5)
    layout = More(*LAYOUT, parallel.OPTIONAL)
    after = Checkpoints(tmp_path / "all").restore(More(*make_state(0)), layout)
    assert after.more == () and int(after.updates) == 5


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a flipped bit": flip,
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("which", ["largest", "_METADATA", CHECKSUMS])
def test_a_damaged_one_is_named_and_the_one_before_it_used(
    tmp_path, capsys, damage, which
):
    save(tmp_path / "all", 5, 6)
    files = [path for path in (tmp_path / "all" / "6").glob("**/*") if path.is_file()]
    files = [path for path in files if which in ("largest", path.name)]
    damage(max(files, key=lambda path: path.stat().st_size))
    after, _ = restored(tmp_path / "all")
    assert int(after.updates) == 5
    (line,) = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "all" / "6") in line and "damaged" in line


def test_an_unfinished_one_is_none(tmp_path):
    save(tmp_path / "all", 5, 6)
    os.rename(tmp_path / "all" / "6", tmp_path / "all" / "6.orbax-checkpoint-tmp")
    assert int(restored(tmp_path / "all")[0].updates) == 5
    save(tmp_path / "all", 6)  # over its remains
    assert int(restored(tmp_path / "all")[0].updates) == 6


def test_no_checkpoint_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no whole checkpoint"):
        restored(tmp_path / "none")


def test_one_that_was_renamed_is_one_line(tmp_path):
    save(tmp_path, 5)
    (tmp_path / "5").rename(tmp_path / "3")
    with pytest.raises(UserError, match="/3: .* 5 updates, not 3: name the folder 5"):
        restored(tmp_path)


def test_another_network_is_one_line(tmp_path):
    save(tmp_path / "all", 5)
    line = r"shared.params.0 is \(3,\) in the checkpoint and \(4,\) here"
    with pytest.raises(UserError, match=line):
        restored(tmp_path / "all", size=4)
    fresh = make_state(0)
    more = fresh._replace(shared=fresh.shared | {"more": fresh.updates})
    with pytest.raises(UserError, match="has no shared.more: .* or version of"):
        Checkpoints(tmp_path / "all").restore(more, LAYOUT)
    less = fresh._replace(shared={"step": fresh.shared["step"]})
    with pytest.raises(UserError, match="of another agent, network or environment"):
        Checkpoints(tmp_path / "all").restore(less, LAYOUT)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/all/5: cannot write"):
        save(tmp_path / "file" / "all", 5)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"minutes": -1.0}, "minutes is -1.0"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"keep": 0}, "keep is 0; it must be at least 1"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
    ],
)
def test_bad_options_are_one_line(options, line):
    with pytest.raises(UserError, match=line):
        Config(**options)


def test_when_one_is_due(tmp_path):
    never = Checkpoints(tmp_path, Config(minutes=1e6))
    assert not never.is_due({"steps": 10**12})
    assert Checkpoints(tmp_path, Config(minutes=0.0)).is_due({"steps": 1})
    by_steps = Checkpoints(tmp_path / "all", Config(minutes=1e6, steps=100))
    assert not by_steps.is_due({"steps": 99}) and by_steps.is_due({"steps": 101})
    with by_steps:
        by_steps.save(make_state(1), {"steps": 101})
        assert not by_steps.is_due({"steps": 199}) and by_steps.is_due({"steps": 200})


def test_what_cannot_be_read_again_is_noticed_at_once(tmp_path):
    """In a folder whose name Orbax takes for a pattern, it writes what it cannot read."""
    folder = tmp_path / "ppo [lr]"
    folder.mkdir()
    with (
        Checkpoints(folder / "checkpoints") as checkpoints,
        pytest.raises(UserError, match=r"^[^:]*/3: was written, but cannot be read: "),
    ):
        checkpoints.save(make_state(3), None)
