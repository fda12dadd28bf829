"""Objects that cross Seaquest's board along rows, in arrays of fixed size."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from envs_jax.minatar.game import SIZE, any_of, columns, rows

AWAY = -1  # the column of an object that does not exist, as is any off the board


class Swimmers(NamedTuple):
    """The newest first; all [N], int32 except `armed`."""

    row: jax.Array
    column: jax.Array
    right: jax.Array  # 1 or -1: columns per move
    wait: jax.Array  # steps until it moves
    armed: jax.Array  # bool, whether it shoots
    reload: jax.Array  # steps until it shoots


def empty(count: int) -> Swimmers:
    nothing = jnp.zeros(count, jnp.int32)
    unarmed = jnp.zeros(count, bool)
    return Swimmers(nothing, nothing + AWAY, nothing, nothing, unarmed, nothing)


def inside(swimmers: Swimmers) -> jax.Array:
    """bool [N]: whether it is on the board."""
    return (swimmers.column >= 0) & (swimmers.column < SIZE)


def at(swimmers: Swimmers, row: jax.Array, column: jax.Array) -> jax.Array:
    """bool [N]: whether it is in that cell of the board."""
    return (swimmers.row == row) & (swimmers.column == column)


def launch(swimmers: Swimmers, new: jax.Array, *swimmer: jax.Array) -> Swimmers:
    """Where `new`, adds one with the fields `swimmer` and drops the oldest."""

    def push(leaf, value):
        pushed = jnp.concatenate([jnp.asarray(value, leaf.dtype)[None], leaf[:-1]])
        return jnp.where(new, pushed, leaf)

    return Swimmers(*map(push, swimmers, swimmer))


def remove(swimmers: Swimmers, where: jax.Array) -> Swimmers:
    return swimmers._replace(column=jnp.where(where, AWAY, swimmers.column))


def swim(swimmers: Swimmers, interval: jax.Array | int) -> tuple[Swimmers, jax.Array]:
    """The state one step later; and bool [N]: it moved, and now waits `interval` steps."""
    moves = inside(swimmers) & (swimmers.wait == 0)
    column = jnp.where(moves, swimmers.column + swimmers.right, swimmers.column)
    wait = jnp.where(moves, interval, swimmers.wait - 1)
    return swimmers._replace(column=column, wait=wait), moves


def rows_of(swimmers: Swimmers, bits: jax.Array) -> jax.Array:
    """int32 [10]: for each row, the bitwise or of its swimmers' bits [N]."""
    return any_of(jnp.where(rows() == swimmers.row[None], bits[None], 0))


def launched_shots(swimmers: Swimmers, fires: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int32 [10] twice: one bit per column, for shots to the left and to the right."""
    shift = jnp.where(swimmers.right > 0, SIZE, 0)
    both = rows_of(swimmers, _bit(swimmers.column, fires) << shift)
    return both & (1 << SIZE) - 1, both >> SIZE


def planes(swimmers: Swimmers) -> tuple[jax.Array, jax.Array, jax.Array]:
    """bool [10, 10] three times: the unarmed, the armed, and the last cells of both."""
    there = inside(swimmers)
    body = _bit(swimmers.column, there) << jnp.where(swimmers.armed, SIZE, 0)
    trail = _bit(swimmers.column - swimmers.right, there) << 2 * SIZE
    bits = rows_of(swimmers, body | trail)[:, None]
    shifts = 0, SIZE, 2 * SIZE
    return tuple(bits >> (columns() + shift) & 1 == 1 for shift in shifts)


def _bit(column: jax.Array, where: jax.Array) -> jax.Array:
    """int32: the column's bit where `where` holds and the column is on the board, else 0."""
    where &= (column >= 0) & (column < SIZE)
    return jnp.where(where, 1 << jnp.where(where, column, 0), 0)
