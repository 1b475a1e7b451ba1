"""The walls of the room, of bricks, as rays meet them."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from engram.envs.pickup import config as constants
from engram.envs.pickup.shapes import AMBIENT, DIFFUSE, MIDDLE, SUN, directions, make_rays

ROWS_OF_BRICKS, BRICKS = 1 / 12, 0.25
"""height and length of a brick with its mortar, in meters"""
MORTAR_SHARES = 0.14, 0.05
"""of the height and of the length of a brick"""
BRICK_OFFSETS = 0.46, 0.02
"""of the mortar in even and odd rows, in bricks"""


class Wall(NamedTuple):
    """The wall behind each column of pixels."""

    depth: Float[Array, "S W"]
    light: Float[Array, "S W"]


def make_wall(
    position: Float[Array, "2"], heading: Float[Array, ""], size: float, right: Float[Array, "S W"]
) -> Wall:
    dx, dz, depth_x, depth_z = _wall_depths(position, heading, size, right)
    sunlight = jnp.where(
        depth_x < depth_z, jnp.where(dx < 0, SUN[0], 0.0), jnp.where(dz < 0, SUN[2], 0.0)
    )
    return Wall(jnp.minimum(depth_x, depth_z), AMBIENT + DIFFUSE * sunlight)


def _wall_depths(
    position: Float[Array, "2"], heading: Float[Array, ""], size: float, right: Float[Array, "*X"]
) -> tuple[Array, Array, Array, Array]:
    """Slopes of the columns in x and z, and depths of the walls that end x and z there."""
    forward_axis, right_axis = directions(heading)
    dx = forward_axis[0] + right * right_axis[0]
    dz = forward_axis[1] + right * right_axis[1]
    depth_x = jnp.where(dx > 0, size - position[0], -position[0]) / dx
    depth_z = jnp.where(dz > 0, size - position[1], -position[1]) / dz
    return dx, dz, depth_x, depth_z


def mortar_shares(
    position: Float[Array, "2"],
    heading: Float[Array, ""],
    size: float,
    shape: tuple[int, int],
) -> Float[Array, "H W"]:
    """The share of mortar in each pixel of the walls."""
    rays = make_rays(shape, MIDDLE)
    right, up = rays.right[0], rays.up[0]
    dx, dz, depth_x, depth_z = _wall_depths(position, heading, size, right)
    is_x = depth_x < depth_z
    depth = jnp.minimum(depth_x, depth_z)
    x, z = position[0] + depth * dx, position[1] + depth * dz
    along = jnp.where(is_x, jnp.where(dx > 0, size - z, z), jnp.where(dz > 0, x, size - x))
    pixel = 2 * math.tan(constants.FIELD_OF_VIEW / 2) / shape[0]
    blur = pixel * jnp.maximum(depth, depth / jnp.abs(jnp.where(is_x, dx, dz)))
    height = constants.EYE_HEIGHT + up[:, None] * depth
    row_share, brick_share = MORTAR_SHARES
    in_rows = _striped(height / ROWS_OF_BRICKS, blur / ROWS_OF_BRICKS, row_share)
    even, odd = (
        _striped(along / BRICKS - offset, blur / BRICKS, brick_share) for offset in BRICK_OFFSETS
    )
    # Rows too thin to be told apart have the mean of both.
    sharpness = jnp.clip(1 - blur / ROWS_OF_BRICKS, 0.0, 1.0)
    is_odd = jnp.floor(height / ROWS_OF_BRICKS) % 2
    in_bricks = (even + odd) / 2 + sharpness * (is_odd - 0.5) * (odd - even)
    return in_rows + (1 - in_rows) * in_bricks


def _striped(x: Array, width: Array, share: float) -> Array:
    """The mean over x +- width / 2 of 1 within share / 2 of whole numbers, and 0 elsewhere."""
    x = x + share / 2

    def integral(x):
        whole = jnp.floor(x)
        return whole * share + jnp.minimum(x - whole, share)

    return (integral(x + width / 2) - integral(x - width / 2)) / width
