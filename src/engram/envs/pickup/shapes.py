"""Objects as rays meet them, and the light on their surfaces.

The camera looks horizontally, and all objects stand upright. So a ray's way over the floor depends
on its column of pixels alone and its slope on its row alone. A box is hit where the interval of
depths in which a column passes over its base overlaps that in which a row is between its bottom
and its top. Depth is the distance along the view direction.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from engram.envs.pickup import config as constants

# Light as OpenGL computes it: a direction and intensities.
SUN = np.array([1, 3.5, 1]) / math.sqrt(1 + 3.5**2 + 1)
AMBIENT, DIFFUSE = 0.65, 0.7
NORMAL_SCALES = np.array([1 / 0.35096312, 1.0, 1 / 0.175], np.float32)
"""of the normals of balls, boxes and keys: where a mesh is scaled its normals are, inversely"""
SAMPLES = np.array([(0.375, 0.125), (0.875, 0.375), (0.125, 0.625), (0.625, 0.875)])
"""places in a pixel [x, y] at which geometry is sampled"""
MIDDLE = np.array([(0.5, 0.5)])
NEAR, FAR = 0.04, 1e9
BALL_RADIUS = 0.4505

# A surface's code is its depth as the bits of a float, the lowest replaced by light and object. So
# the nearest of many surfaces is the smallest integer, and it says how to draw it.
OBJECT_BITS, LIGHT_BITS = 5, 7
PAYLOAD = (1 << (OBJECT_BITS + LIGHT_BITS)) - 1
MAX_LIGHT = AMBIENT + DIFFUSE * float(NORMAL_SCALES.max())
NOTHING = np.int32(0x7F000000)

# Boxes of a key [x0, x1, y0, y1, z0, z1] in its own axes: four around a hole, shaft, two teeth.
_KEY = 0.175 * np.array(
    [
        (-0.401, 0.401, 0.12, 1.88, -2.419, -2.075),
        (-0.401, 0.401, 0.12, 1.88, -0.762, -0.419),
        (-0.401, 0.401, 1.656, 2.0, -2.299, -0.539),
        (-0.401, 0.401, 0.0, 0.344, -2.299, -0.539),
        (-0.27, 0.27, 0.73, 1.27, -0.625, 2.419),
        (-0.121, 0.121, 0.115, 0.73, 1.123, 1.563),
        (-0.121, 0.121, 0.045, 0.73, 1.796, 2.247),
    ]
)
_EMPTY = (1, 0, 1, 0, 1, 0)
BOXES = np.array(
    [
        [_EMPTY] * len(_KEY),
        [(-0.45, 0.45, 0, 0.9, -0.45, 0.45)] + [_EMPTY] * (len(_KEY) - 1),
        _KEY,
    ],
    np.float32,
)
"""of balls, boxes and keys"""


class Objects(NamedTuple):
    """What lies in the room."""

    kind: Int[Array, "K"]
    color: Int[Array, "K"]
    position: Float[Array, "K 2"]
    """x and z"""
    height: Float[Array, "K"]
    """of the bottom above the floor"""
    direction: Float[Array, "K"]
    """angle by which it is turned, counterclockwise as seen from above"""
    visible: Bool[Array, "K"]


class Rays(NamedTuple):
    """Slopes of the rays through S samples per pixel, to the right and upwards."""

    right: Float[Array, "S W"]
    up: Float[Array, "S H"]


def directions(heading: Float[Array, "*K"]) -> tuple[Float[Array, "*K 2"], Float[Array, "*K 2"]]:
    """Unit vectors [x, z] forward and to the right."""
    cos, sin = jnp.cos(heading), jnp.sin(heading)
    return jnp.stack([cos, -sin], axis=-1), jnp.stack([sin, cos], axis=-1)


def make_rays(shape: tuple[int, int], samples: np.ndarray) -> Rays:
    height, width = shape
    slope = math.tan(constants.FIELD_OF_VIEW / 2)
    x = (np.arange(width) + samples[:, :1]) / width
    y = (np.arange(height) + samples[:, 1:]) / height
    right, up = (2 * x - 1) * slope * width / height, (1 - 2 * y) * slope
    return Rays(jnp.asarray(right, jnp.float32), jnp.asarray(up, jnp.float32))


class Codes(NamedTuple):
    """Where columns or rows of pixels enter and leave K x P boxes, as codes."""

    enter: Int[Array, "K P S *X"]
    leave: Int[Array, "K P S *X"]

    def at_box(self, k: int, p: int, sample: int) -> "Codes":
        """Those of one box, for one sample of each pixel."""
        return Codes(self.enter[k, p, sample], self.leave[k, p, sample])


def box_codes(
    objects: Objects,
    ahead: Float[Array, "K"],
    aside: Float[Array, "K"],
    heading: Float[Array, ""],
    rays: Rays,
) -> tuple[Codes, Codes]:
    """Codes of all boxes for columns and for rows."""
    x0, x1, y0, y1, z0, z1 = jnp.moveaxis(jnp.asarray(BOXES)[objects.kind], -1, 0)[..., None, None]
    per_object = lambda x: x[:, None, None, None]  # noqa: E731
    turn = objects.direction - heading
    cos, sin = jnp.cos(turn), jnp.sin(turn)
    # The ray in the axes of the object.
    x, z = -(ahead * cos - aside * sin), -(ahead * sin + aside * cos)
    dx = per_object(cos) - rays.right * per_object(sin)
    dz = per_object(sin) + rays.right * per_object(cos)
    enter_x, leave_x = _interval(x0 - per_object(x), x1 - per_object(x), dx)
    enter_z, leave_z = _interval(z0 - per_object(z), z1 - per_object(z), dz)
    enter, leave = jnp.maximum(enter_x, enter_z), jnp.minimum(leave_x, leave_z)
    is_hit = per_object(objects.visible) & (x0 < x1) & (enter < leave)
    forward, right = directions(objects.direction)
    sun_x, sun_z = (per_object(axis @ SUN[::2]) for axis in (forward, right))
    sunlight = jnp.where(
        enter_x > enter_z,
        jnp.where(dx > 0, -sun_x, sun_x),
        jnp.where(dz > 0, -sun_z, sun_z),
    )
    scale = per_object(jnp.asarray(NORMAL_SCALES)[objects.kind])
    number = per_object(jnp.arange(len(objects.kind)))
    light = AMBIENT + DIFFUSE * scale * jnp.maximum(sunlight, 0)
    columns = Codes(
        enter=_code(jnp.where(is_hit, jnp.maximum(enter, NEAR), FAR), light, number),
        leave=_bits(jnp.where(is_hit, leave, 0.0)),
    )
    eye = constants.EYE_HEIGHT - per_object(objects.height)
    enter, leave = _interval(y0 - eye, y1 - eye, rays.up)
    is_top = rays.up < 0
    light = AMBIENT + DIFFUSE * scale * jnp.where(is_top, SUN[1], 0.0)
    return columns, Codes(_code(enter, light, number), _bits(leave))


def _interval(low: Array, high: Array, slope: Array) -> tuple[Array, Array]:
    """Depths at which a ray enters and leaves what is between two parallel planes."""
    first, second = low / slope, high / slope
    return jnp.minimum(first, second), jnp.maximum(first, second)


def _bits(depth: Float[Array, "*X"]) -> Int[Array, "*X"]:
    return lax.bitcast_convert_type(depth.astype(jnp.float32), jnp.int32)


def _code(depth: Array, light: Array, number: Array | int) -> Int[Array, "*X"]:
    """The code of a surface of an object, by its depth and light."""
    level = (light - AMBIENT) * ((2**LIGHT_BITS - 1) / (MAX_LIGHT - AMBIENT))
    level = jnp.round(level).astype(jnp.int32)
    return (_bits(depth) & ~PAYLOAD) | (level << OBJECT_BITS) | number


class Ball(NamedTuple):
    """A ball's center, as seen from the eye."""

    ahead: Float[Array, ""]
    above: Float[Array, ""]
    aside: Float[Array, ""]

    def discriminant(self, right: Float[Array, "W"], up: Float[Array, "H"]) -> Float[Array, "H W"]:
        """Of the quadratic equation for the depth at which rays meet the ball."""
        square, dot, gap = self._coefficients(right, up)
        return dot**2 - square * gap

    def code(
        self,
        number: int,
        heading: Float[Array, ""],
        right: Float[Array, "W"],
        up: Float[Array, "H"],
    ) -> Int[Array, "H W"]:
        """Codes where rays meet the ball."""
        square, dot, _ = self._coefficients(right, up)
        depth = (dot - jnp.sqrt(jnp.maximum(self.discriminant(right, up), 0.0))) / square
        forward_axis, right_axis = directions(heading)
        sun = forward_axis @ SUN[::2], SUN[1], right_axis @ SUN[::2]
        toward_sun = depth * (sun[0] + right * sun[2] + up[:, None] * sun[1])
        center_to_sun = sun[0] * self.ahead + sun[1] * self.above + sun[2] * self.aside
        cosine = jnp.clip((toward_sun - center_to_sun) / BALL_RADIUS, 0, 1)
        light = AMBIENT + DIFFUSE * NORMAL_SCALES[constants.BALL] * cosine
        return jnp.where(depth > NEAR, _code(depth, light, number), NOTHING)

    def _coefficients(
        self, right: Float[Array, "W"], up: Float[Array, "H"]
    ) -> tuple[Array, Array, Array]:
        square = 1 + right**2 + up[:, None] ** 2
        dot = self.ahead + right * self.aside + up[:, None] * self.above
        gap = self.ahead**2 + self.above**2 + self.aside**2 - BALL_RADIUS**2
        return square, dot, gap
