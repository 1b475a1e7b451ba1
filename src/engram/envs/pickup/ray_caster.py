"""Frames of the room by ray casting: what MiniWorld draws with OpenGL, in closed form per pixel."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt8

from engram.devices import platform
from engram.envs.pickup import config as constants
from engram.envs.pickup.shapes import (
    AMBIENT,
    BALL_RADIUS,
    BOXES,
    FAR,
    LIGHT_BITS,
    MAX_LIGHT,
    MIDDLE,
    NOTHING,
    OBJECT_BITS,
    PAYLOAD,
    SAMPLES,
    Ball,
    Codes,
    Objects,
    box_codes,
    directions,
    make_rays,
)
from engram.envs.pickup.walls import Wall, make_wall, mortar_shares

SKY, FLOOR, BRICK, MORTAR = np.array(
    [(63.75, 209.1, 255), (108.4, 109.6, 111.2), (122, 89, 75), (145, 136, 124)], np.float32
)
PACKED_RGB = np.round(255 * constants.RGB).astype(np.int32) @ np.array([1, 2**8, 2**16], np.int32)


class Scene(NamedTuple):
    """What all rows of pixels share."""

    objects: Objects
    ahead: Float[Array, "K"]
    """of the eye; the middles of the objects"""
    aside: Float[Array, "K"]
    heading: Float[Array, ""]
    wall: Wall
    right: Float[Array, "S W"]
    """slopes of the rays through all samples"""
    middle_right: Float[Array, "1 W"]
    """slopes of the rays through the middles of pixels"""
    boxes: Codes


class Rows(NamedTuple):
    """Rows of pixels; their axis is the last one of every array."""

    up: Float[Array, "S H"]
    middle_up: Float[Array, "1 H"]
    boxes: Codes
    mortar: Float[Array, "W H"]


def render(
    position: Float[Array, "2"],
    heading: Float[Array, ""],
    objects: Objects,
    size: float,
    shape: tuple[int, int] = constants.FRAME_SHAPE[:2],
) -> UInt8[Array, "H W 3"]:
    """What an agent at this place sees of a square room."""
    rays, middle = make_rays(shape, SAMPLES), make_rays(shape, MIDDLE)
    relative = objects.position - position
    forward, right = directions(heading)
    ahead, aside = relative @ forward, relative @ right
    columns, row_codes = box_codes(objects, ahead, aside, heading, rays)
    wall = make_wall(position, heading, size, rays.right)
    scene = Scene(objects, ahead, aside, heading, wall, rays.right, middle.right, columns)
    rows = Rows(rays.up, middle.up, row_codes, mortar_shares(position, heading, size, shape).T)
    pixels = _draw(scene, rows).reshape(shape)
    return lax.bitcast_convert_type(pixels, jnp.uint8)[..., :3]


def _draw(scene: Scene, rows: Rows) -> Int[Array, "parts H/parts W"]:
    """Pixels as numbers of three bytes.

    On a CPU XLA makes one kernel of it all, computes it once per byte, and does not vectorize what
    is too long. The body of a loop is a kernel of its own. So the picture is drawn in halves, and
    few objects at a time.
    """
    if platform() == "gpu":
        return _paint(scene, rows, _nearest_surfaces(scene, rows))[None]
    count, parts, chunk = len(scene.objects.kind), 2, 3
    split = jax.tree.map(lambda x: jnp.stack(jnp.split(x, parts, axis=-1)), rows)
    shape = (parts, *split.mortar.mT.shape[1:])
    nearest = [jnp.full(shape, NOTHING)] * len(SAMPLES)
    chunks = [range(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    for objects in chunks[:-1]:
        nearest = lax.map(partial(_add_objects, scene, objects), (split, nearest))

    def finish(part):
        return _paint(scene, part[0], _add_objects(scene, chunks[-1], part))

    return lax.map(finish, (split, nearest))


def _nearest_surfaces(scene: Scene, rows: Rows) -> list[Int[Array, "H W"]]:
    """For each sample the code of the nearest surface, on a GPU.

    The objects are a loop within the kernel. Written out one after another they are so long a
    program that the GPU waits for its instructions.
    """

    def of_object(k):
        column, row = jax.tree.map(lambda x: x[k], (scene.boxes, rows.boxes))
        enter = jnp.maximum(column.enter[:, :, None], row.enter[..., None])
        leave = jnp.minimum(column.leave[:, :, None], row.leave[..., None])
        boxes = jnp.min(jnp.where(enter < leave, enter, NOTHING), axis=0)
        ball = _ball(scene, k)
        light_code = ball.code(k, scene.heading, scene.middle_right[0], rows.middle_up[0])
        is_hit = jax.vmap(ball.discriminant)(scene.right, rows.up) > 0
        return jnp.minimum(boxes, jnp.where(is_hit & _is_ball(scene, k), light_code, NOTHING))

    return list(jnp.min(jax.vmap(of_object)(jnp.arange(len(scene.objects.kind))), axis=0))


def _ball(scene: Scene, k: int | Int[Array, ""]) -> Ball:
    """An object as a ball, which it may not be."""
    above = scene.objects.height[k] + BALL_RADIUS - constants.EYE_HEIGHT
    return Ball(scene.ahead[k], above, scene.aside[k])


def _is_ball(scene: Scene, k: int | Int[Array, ""]) -> Bool[Array, ""]:
    return (scene.objects.kind[k] == constants.BALL) & scene.objects.visible[k]


def _add_objects(
    scene: Scene, objects: Sequence[int], part: tuple[Rows, list[Int[Array, "H W"]]]
) -> list[Int[Array, "H W"]]:
    """For each sample the code of the nearest surface, of what was there and of these objects."""
    rows, nearest = part[0], list(part[1])
    for k in objects:
        ball = _ball(scene, k)
        # As with OpenGL's samples, what is hit is found per sample, and light per pixel.
        light_code = ball.code(k, scene.heading, scene.middle_right[0], rows.middle_up[0])
        ball_code = jnp.where(_is_ball(scene, k), light_code, NOTHING)
        for i, code in enumerate(nearest):
            for p in range(BOXES.shape[1]):
                column, row = (x.at_box(k, p, i) for x in (scene.boxes, rows.boxes))
                enter = jnp.maximum(column.enter, row.enter[:, None])
                leave = jnp.minimum(column.leave, row.leave[:, None])
                code = jnp.minimum(code, jnp.where(enter < leave, enter, NOTHING))
            is_hit = ball.discriminant(scene.right[i], rows.up[i]) > 0
            nearest[i] = jnp.minimum(code, jnp.where(is_hit, ball_code, NOTHING))
    return nearest


def _paint(scene: Scene, rows: Rows, nearest: list[Int[Array, "H W"]]) -> Int[Array, "H W"]:
    """Pixels as numbers of three bytes, each the mean over the pixel's samples."""
    wall, mortar, num_objs = scene.wall, rows.mortar.T, len(scene.objects.color)
    packed = jnp.asarray(PACKED_RGB)[scene.objects.color]
    floor, sky, wall_light = 0.0, 0.0, 0.0
    lit: list[Any] = [0.0, 0.0, 0.0]
    for i, code in enumerate(nearest):
        up, wall_depth = rows.up[i][:, None], wall.depth[i]
        height = constants.EYE_HEIGHT + up * wall_depth
        is_floor, is_sky = height < 0, height > constants.WALL_HEIGHT
        depth = jnp.where(is_floor, -constants.EYE_HEIGHT / up, wall_depth)
        depth = jnp.where(is_sky, FAR, depth)
        is_object = lax.bitcast_convert_type(code, jnp.float32) < depth
        floor += jnp.where(is_floor & ~is_object, 1.0, 0.0)
        sky += jnp.where(is_sky & ~is_object, 1.0, 0.0)
        wall_light += jnp.where(is_floor | is_sky | is_object, 0.0, wall.light[i])
        number = code & (2**OBJECT_BITS - 1)
        level = ((code & PAYLOAD) >> OBJECT_BITS).astype(jnp.float32)
        light = AMBIENT + level * ((MAX_LIGHT - AMBIENT) / (2**LIGHT_BITS - 1))
        light = jnp.where(is_object, light, 0.0)
        # The color as one number of three bytes: one selection per object instead of three.
        color = packed[0]
        for k in range(1, num_objs):
            color = jnp.where(number == k, packed[k], color)
        for c in range(3):
            byte = ((color >> (8 * c)) & 255).astype(jnp.float32)
            lit[c] += jnp.minimum(byte * light, 255.0)
    pixel = jnp.zeros(mortar.shape, jnp.int32)
    for c in range(3):
        bricks = BRICK[c] + mortar * (MORTAR[c] - BRICK[c])
        total = lit[c] + floor * FLOOR[c] + sky * SKY[c] + wall_light * bricks
        pixel |= jnp.round(total / len(nearest)).astype(jnp.int32) << (8 * c)
    return pixel
