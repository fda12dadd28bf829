"""What cores share is compared bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import parallel
from podracer.errors import UserError
from podracer.parallel import LOCAL, SHARED, agreement

pytestmark = pytest.mark.core


def of_cores(*parts):
    """A tree that claims to be SHARED; each core has its own of `parts`."""
    mesh = parallel.make_mesh(len(parts))
    shared = [parallel.over_cores(lambda x=x: x, mesh, (), SHARED)() for x in parts]
    return jax.tree.map(
        lambda first, *rest: jax.make_array_from_single_device_arrays(
            first.shape,
            first.sharding,
            [x.addressable_shards[i].data for i, x in enumerate((first, *rest))],
        ),
        *shared,
    )


@pytest.mark.parametrize(
    "one, other",
    [
        (np.float32([1.0, 2.0]), np.float32([1.0, np.nextafter(np.float32(2), 3)])),
        (np.float32([0.0]), np.float32([-0.0])),
        (np.float32([1.0, 2.0]), np.float32([2.0, 1.0])),
        (np.float32([np.nan, 1.0]), np.float32([1.0, np.nan])),
        (jnp.bfloat16(1.0), jnp.bfloat16(1.0078125)),
        (np.complex64(1 + 2j), np.complex64(2 + 1j)),
        (np.bool_([True, False]), np.bool_([True, True])),
        (np.int8(-1), np.int8(1)),
        (np.uint32([7, 8]), np.uint32([7, 9])),
    ],
)
def test_a_difference_names_the_array_and_the_remedy(one, other):
    same = {"step": np.int32(3), "empty": np.zeros(0, np.float32)}
    parallel.check_shared(of_cores({"w": one} | same, {"w": one} | same))
    state = of_cores({"w": one} | same, {"w": other} | same)
    with pytest.raises(UserError, match=r"^\['w'\] differs .*`average` given") as error:
        parallel.check_shared(state)
    assert len(str(error.value).splitlines()) == 1


def test_the_last_state_is_compared_too():
    same = of_cores({"w": np.float32(1)}, {"w": np.float32(1)})
    other = of_cores({"w": np.float32(1)}, {"w": np.float32(2)})
    reports = parallel.checked(x for x in [(same, 1), (other, 2)])
    assert [next(reports)[1], next(reports)[1]] == [1, 2]
    with pytest.raises(UserError, match="differs between cores"):
        next(reports)
    assert not [*parallel.checked(x for x in ())]


def test_equal_nans_agree():
    parallel.check_shared(of_cores(*[np.float32([np.nan, 1.0])] * 4))


def test_keys_are_compared():
    parallel.check_shared(of_cores(jax.random.key(0), jax.random.key(0)))
    with pytest.raises(UserError, match="differs between cores"):
        parallel.check_shared(of_cores(jax.random.key(0), jax.random.key(1)))


def test_the_core_that_differs_may_be_any_of_them():
    for number in range(4):
        parts = [np.float32(core == number) for core in range(4)]
        with pytest.raises(UserError, match="differs between cores"):
            parallel.check_shared(of_cores(*parts))


def test_what_belongs_to_a_core_may_differ():
    mesh = parallel.make_mesh(2)
    keys = parallel.over_cores(parallel.core_key, mesh, (SHARED,), LOCAL)(
        jax.random.key(0)
    )
    parallel.check_shared(
        {"keys": keys, "on the host": np.arange(3), "one": jnp.ones(2)}
    )


def test_an_element_that_changes_changes_the_checksum():
    x = np.arange(1_000, dtype=np.float32)
    sums = {int(agreement.checksum(jnp.asarray(x)))}
    for i in range(0, 1_000, 10):
        changed = x.copy()
        changed[i] += 0.5
        sums.add(int(agreement.checksum(jnp.asarray(changed))))
    assert len(sums) == 101


def test_only_the_first_report_is_checked_and_the_loop_is_closed():
    closed = []

    def reports():
        try:
            for number in range(3):
                yield of_cores(np.float32(0), np.float32(number)), number
        finally:
            closed.append(True)

    checked = parallel.checked(reports())
    assert [next(checked)[1], next(checked)[1]] == [0, 1]
    checked.close()
    assert closed == [True]
