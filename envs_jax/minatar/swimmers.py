"""What crosses Seaquest's board in rows, a fixed number of places for it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from envs_jax.minatar.game import SIZE, any_of, columns, rows

AWAY = -1  # the column of what is not there; beyond an edge it is not there either


class Swimmers(NamedTuple):
    """The newest first; all [N], int32 but for `armed`."""

    row: jax.Array
    column: jax.Array
    right: jax.Array  # 1 or -1: columns a move
    wait: jax.Array  # steps until it moves
    armed: jax.Array  # bool, it shoots
    reload: jax.Array  # steps until it shoots


def empty(count: int) -> Swimmers:
    nothing = jnp.zeros(count, jnp.int32)
    unarmed = jnp.zeros(count, bool)
    return Swimmers(nothing, nothing + AWAY, nothing, nothing, unarmed, nothing)


def inside(swimmers: Swimmers) -> jax.Array:
    """bool [N]: on the board."""
    return (swimmers.column >= 0) & (swimmers.column < SIZE)


def at(swimmers: Swimmers, row: jax.Array, column: jax.Array) -> jax.Array:
    """bool [N]: in that cell of the board."""
    return (swimmers.row == row) & (swimmers.column == column)


def launch(swimmers: Swimmers, new: jax.Array, *swimmer: jax.Array) -> Swimmers:
    """With one more, where `new`, in the place of the oldest: its fields are `swimmer`."""

    def push(leaf, value):
        pushed = jnp.concatenate([jnp.asarray(value, leaf.dtype)[None], leaf[:-1]])
        return jnp.where(new, pushed, leaf)

    return Swimmers(*map(push, swimmers, swimmer))


def remove(swimmers: Swimmers, where: jax.Array) -> Swimmers:
    return swimmers._replace(column=jnp.where(where, AWAY, swimmers.column))


def swim(swimmers: Swimmers, interval: jax.Array | int) -> tuple[Swimmers, jax.Array]:
    """One step later; and bool [N]: it moved, and now waits `interval` steps."""
    moves = inside(swimmers) & (swimmers.wait == 0)
    column = jnp.where(moves, swimmers.column + swimmers.right, swimmers.column)
    wait = jnp.where(moves, interval, swimmers.wait - 1)
    return swimmers._replace(column=column, wait=wait), moves


def rows_of(swimmers: Swimmers, bits: jax.Array) -> jax.Array:
    """int32 [10]: the bits [N] of all swimmers in a row, joined."""
    return any_of(jnp.where(rows() == swimmers.row[None], bits[None], 0))


def launched_shots(swimmers: Swimmers, fires: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int32 [10] twice: a bit a column for shots to the left, and to the right."""
    shift = jnp.where(swimmers.right > 0, SIZE, 0)
    both = rows_of(swimmers, _bit(swimmers.column, fires) << shift)
    return both & (1 << SIZE) - 1, both >> SIZE


def planes(swimmers: Swimmers) -> tuple[jax.Array, jax.Array, jax.Array]:
    """bool [10, 10] three times: the unarmed, the armed, and all those's last cells."""
    there = inside(swimmers)
    body = _bit(swimmers.column, there) << jnp.where(swimmers.armed, SIZE, 0)
    trail = _bit(swimmers.column - swimmers.right, there) << 2 * SIZE
    bits = rows_of(swimmers, body | trail)[:, None]
    shifts = 0, SIZE, 2 * SIZE
    return tuple(bits >> (columns() + shift) & 1 == 1 for shift in shifts)


def _bit(column: jax.Array, where: jax.Array) -> jax.Array:
    """int32: the column's bit, 0 beyond the edges and elsewhere."""
    where &= (column >= 0) & (column < SIZE)
    return jnp.where(where, 1 << jnp.where(where, column, 0), 0)
