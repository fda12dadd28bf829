"""Random numbers are JAX's own, bit for bit, whatever their hash is compiled to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from podracer.kernels import threefry

pytestmark = pytest.mark.core
MOST = 2**32 - 1


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [  # the known answers of Random123 (Salmon et al. 2011), of 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((MOST, MOST), (MOST, MOST), (0x1CB996FC, 0xBB002BE7)),
        (
            (0x13198A2E, 0x03707344),
            (0x243F6A88, 0x85A308D3),
            (0xC4923A9C, 0x483DF7A0),
        ),
    ],
)
def test_the_hash_gives_its_known_answers(key, counter, answer):
    key, counter = jnp.array(key, jnp.uint32), jnp.array(counter, jnp.uint32)
    np.testing.assert_array_equal(threefry.threefry(*key, *counter), answer)
    np.testing.assert_array_equal(threefry_2x32(key, counter), answer)


def test_numbers_are_those_of_jax_alone():
    """What JAX 0.7.2 and 0.10.2 gave in a process without podracer."""
    key = jax.random.key(7)
    bits = [2895194379, 4185947648, 1300703658, 1906787632, 3139134342]
    assert jax.random.bits(key, (5,)).tolist() == bits
    keys = [
        [3625411723, 1954958720],
        [195045567, 4062205631],
        [966301609, 1948237315],
    ]
    assert jax.random.key_data(jax.random.split(key, 3)).tolist() == keys
    folded = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(4))
    small = jax.vmap(lambda key: jax.random.bits(key, (), "uint8"))(folded)
    assert small.tolist() == [37, 31, 232, 148]
    assert jax.random.bits(key, (0,)).shape == (0,)


@pytest.mark.parametrize("kind", ["manual", "explicit"])
def test_keys_of_several_cores(kind):
    """Keys that vary over the cores of a program, and keys whose type says where they are."""
    cores, key = 2, jax.random.key(7)
    folded = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i)))
    expected = folded(jnp.arange(cores, dtype=jnp.uint32))

    def on_core(key):
        return jax.random.bits(
            jax.random.fold_in(key, jax.lax.axis_index("core")), (1,)
        )

    axis = getattr(jax.sharding.AxisType, "Auto" if kind == "manual" else "Explicit")
    mesh = jax.make_mesh((cores,), ("core",), axis_types=(axis,))
    if kind == "manual":
        on_cores = jax.shard_map(on_core, mesh=mesh, in_specs=P(), out_specs=P("core"))
        got = jax.jit(on_cores)(key)
    else:
        with jax.set_mesh(mesh):
            numbers = jnp.arange(cores, dtype=jnp.uint32)
            got = folded(jax.device_put(numbers, NamedSharding(mesh, P("core"))))
    np.testing.assert_array_equal(got.ravel(), expected)
