"""The room from above, for people: objects, the agent, what it sees, and its path."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from engram.envs.pickup import config as constants
from engram.envs.pickup.jax_env import PickupState

PAGE, FLOOR, WALL = (255, 255, 255), (198, 200, 204), (122, 89, 75)
SEEN, AGENT, PATH = (222, 224, 228), (229, 88, 39), (90, 60, 140)
WALL_METERS = 0.3
SCALE = 4
"""shapes are drawn so many times larger, which smooths their edges"""


def draw_top_view(
    state: PickupState, path: Sequence[np.ndarray], size: float, pixels: int
) -> UInt8[np.ndarray, "P P 3"]:
    """A square picture in which x grows to the right and z downwards."""
    canvas = _Canvas(size, SCALE * pixels)
    canvas.square(-WALL_METERS, size + WALL_METERS, WALL)
    canvas.square(0, size, FLOOR)
    canvas.field_of_view(state, size)
    canvas.path(path)
    for k in range(len(state.kind)):
        canvas.object(state, k)
    canvas.agent(state)
    return np.asarray(canvas.image.reduce(SCALE))


class _Canvas:
    """Draws in meters."""

    def __init__(self, size: float, pixels: int):
        self.scale = pixels / (size + 4 * WALL_METERS)
        self.image = Image.new("RGB", (pixels, pixels), PAGE)
        self.draw = ImageDraw.Draw(self.image)

    def to_pixels(self, points: Float[np.ndarray, "N 2"]) -> list[tuple[float, float]]:
        return [tuple(p) for p in (np.asarray(points) + 2 * WALL_METERS) * self.scale]

    def square(self, low: float, high: float, color: tuple[int, int, int]) -> None:
        self.draw.rectangle(sum(self.to_pixels(np.array([[low] * 2, [high] * 2])), ()), fill=color)

    def polygon(
        self, points: Float[np.ndarray, "N 2"], color: tuple[int, int, int], is_filled: bool = True
    ) -> None:
        corners = self.to_pixels(points)
        if is_filled:
            self.draw.polygon(corners, fill=color)
        else:
            self.draw.line([*corners, corners[0]], fill=color, width=int(0.06 * self.scale))

    def field_of_view(self, state: PickupState, size: float) -> None:
        height, width, _ = constants.FRAME_SHAPE
        half = math.atan(math.tan(constants.FIELD_OF_VIEW / 2) * width / height)
        angles = state.heading + np.linspace(-half, half, 40)
        rays = np.stack([np.cos(angles), -np.sin(angles)], axis=-1)
        to_wall = np.where(rays > 0, size - state.position, -state.position)
        with np.errstate(divide="ignore"):
            reach = np.min(np.abs(to_wall / rays), axis=-1, keepdims=True)
        self.polygon(np.concatenate([state.position[None], state.position + reach * rays]), SEEN)

    def path(self, path: Sequence[np.ndarray]) -> None:
        points = self.to_pixels(np.array(path))
        for i, step in enumerate(pairwise(points)):
            age = 1 - (i + 1) / len(points)
            color = tuple(int(c + (f - c) * 0.7 * age) for c, f in zip(PATH, FLOOR, strict=True))
            self.draw.line(step, fill=color, width=int(0.09 * self.scale), joint="curve")

    def object(self, state: PickupState, k: int) -> None:
        """A filled shape; an outline where an object was picked up."""
        kind, present = int(state.kind[k]), bool(state.present[k])
        red, green, blue = (int(255 * x) for x in constants.RGB[state.color[k]])
        angle = float(state.directions[k])
        along = np.array([math.cos(angle), -math.sin(angle)])
        across = np.array([math.sin(angle), math.cos(angle)])
        if kind == constants.BOX:
            points = 0.45 * np.array([along + across, along - across, -along - across])
            points = np.concatenate([points, -points[1:2]])
        elif kind == constants.BALL:
            turns = np.linspace(0, 2 * math.pi, 60)
            points = 0.45 * np.stack([np.cos(turns), np.sin(turns)], axis=-1)
        else:
            points = _key_points(across, along)
        self.polygon(np.asarray(state.places[k]) + points, (red, green, blue), present)

    def agent(self, state: PickupState) -> None:
        angles = state.heading + np.array([0, 2.5, math.pi, -2.5])
        reach = constants.AGENT_RADIUS * np.array([1, 1, 0.45, 1])
        tip = np.stack([np.cos(angles), -np.sin(angles)], axis=-1) * reach[:, None]
        self.polygon(np.asarray(state.position) + tip, AGENT)


def _key_points(along: np.ndarray, across: np.ndarray) -> Float[np.ndarray, "N 2"]:
    """The outline of a key: a ring at one end of a shaft with two teeth."""
    turns = np.linspace(0.35, 2 * math.pi - 0.35, 40)
    ring = np.stack([-0.27 + 0.16 * np.cos(turns), 0.16 * np.sin(turns)], axis=-1)
    teeth = [(0.42, -0.05), (0.42, 0.14), (0.33, 0.14), (0.33, 0.05)]
    teeth += [(0.27, 0.05), (0.27, 0.14), (0.18, 0.14), (0.18, 0.05)]
    shape = np.concatenate([ring, teeth[:1], teeth[1:]])
    return shape[:, :1] * along + shape[:, 1:] * across
