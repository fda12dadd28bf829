"""Small pictures of states, uint8 [H, W, 3]: grids of cells, lines, discs."""

import jax
import jax.numpy as jnp
import numpy as np

SIDE = 64  # pixels along the longer side of a grid's picture, or a few more
CANVAS = 160  # of one of lines and discs, whose edges would look like stairs

Colour = tuple[int, int, int]  # red, green and blue, 0 to 255
Point = tuple[jax.Array | float, jax.Array | float]  # (x, y), from 0 to 1; y is up

WHITE, GREY, BLACK = (255, 255, 255), (128, 128, 128), (0, 0, 0)
RED, GREEN, BLUE, YELLOW = (213, 62, 79), (51, 160, 44), (31, 120, 180), (253, 191, 45)


def cells(board: jax.Array, palette: tuple[Colour, ...]) -> jax.Array:
    """Draws the cells of a board as equal squares, coloured from the palette.

    Args:
      board: int or bool [rows, columns], indices into the palette.
      palette: colours, (red, green, blue) from 0 to 255.
    """
    scale = -(-SIDE // max(board.shape))
    colours = jnp.asarray(np.uint8(palette))[board.astype(jnp.int32)]
    return jnp.repeat(jnp.repeat(colours, scale, axis=0), scale, axis=1)


def canvas(colour: Colour = WHITE) -> jax.Array:
    """An empty square, from (0, 0) at the lower left to (1, 1) at the upper right."""
    return jnp.tile(jnp.asarray(np.uint8([[colour]])), (CANVAS, CANVAS, 1))


def disc(
    picture: jax.Array, centre: Point, radius: jax.Array | float, colour: Colour = BLACK
) -> jax.Array:
    """Draws a filled circle on the picture; lengths are fractions of its side."""
    return _paint(picture, _squared_distance(picture, *centre) <= radius**2, colour)


def line(
    picture: jax.Array,
    start: Point,
    end: Point,
    width: float = 0.04,
    colour: Colour = BLACK,
) -> jax.Array:
    """Draws a line with round ends on the picture; lengths are fractions of its side."""
    (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
    xs, ys = _pixels(picture)
    # Position on the line that is nearest to each pixel; the line may be a point.
    along = ((xs - x) * dx + (ys - y) * dy) / jnp.maximum(dx**2 + dy**2, 1e-9)
    along = jnp.clip(along, 0, 1)
    squared_distance = _squared_distance(picture, x + along * dx, y + along * dy)
    return _paint(picture, squared_distance <= (width / 2) ** 2, colour)


def _pixels(picture: jax.Array) -> np.ndarray:
    """The x and y coordinates of the pixels' centres, float32 [2, H, W]."""
    height, width, _ = picture.shape
    ys, xs = np.mgrid[height - 0.5 : -0.5 : -1, 0.5:width]
    return np.float32([xs / width, ys / height])


def _squared_distance(picture: jax.Array, x, y) -> jax.Array:
    xs, ys = _pixels(picture)
    return (xs - x) ** 2 + (ys - y) ** 2


def _paint(picture: jax.Array, mask: jax.Array, colour: Colour) -> jax.Array:
    return jnp.where(mask[..., None], np.uint8([[colour]]), picture)
