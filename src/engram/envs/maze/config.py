"""The arguments of a maze, checked, and what follows from them: its layout, rewards and images."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int, UInt8

from engram.config import Probability, WholeNumber, check_all
from engram.envs.maze.layout import (
    SAMPLE_SIZES,
    Layout,
    check_size,
    make_layout,
    parse,
    sample_layout,
)
from engram.errors import EngramError

MAX_EPISODE_STEPS = 1_000
GOAL_REWARD, WALL_REWARD, TRAP_REWARD = 1.0, -1.0, -2.0
NUM_FEATURES = 512

WALL_PIXELS, CELL_PIXELS = 2, 8
PALETTE = np.array(
    [(255, 255, 255), (45, 45, 60), (220, 50, 47), (245, 165, 35), (38, 110, 215)], np.uint8
)
FREE, WALL, GOAL, TRAP, AGENT = range(5)
"""indices of `PALETTE`"""


@dataclass(frozen=True)
class MazeConfig:
    """The arguments of `engram/Maze-v0`."""

    size: int = 3
    """n, rows and columns; a drawing has its own"""
    maze: str | None = None
    """sample: the paper's, of size 3 or 5; random: one random maze; dynamic: a new random maze in
    every episode; or a drawing in text. None is the sample if there is one of this size, else
    random"""
    maze_seed: WholeNumber = 0
    """seed of the one random maze"""
    loop_rate: Probability = 0.0
    """probability that a random maze lacks any one wall that it could have, which makes loops"""
    observation: Literal["position", "image", "features"] = "position"
    """x and y; an RGB image; or x, y and 512 features of the image"""
    trap: bool = False
    """whether there is a trap, in a random cell in every episode; its position is observed too"""
    dropout_rate: Probability = 0.0
    """probability that any one of the 512 features is 0"""
    features: str = "random"
    """network of the features: random, squeezenet, or a file of torchvision's ResNet-18 weights"""

    def __post_init__(self):
        check_size(self.size)
        check_all(self)
        if not isinstance(self.maze, str | None):
            raise EngramError(
                f"maze must be sample, random, dynamic, a drawing or None, not {self.maze!r}."
            )
        if not isinstance(self.features, str):
            raise EngramError(
                "features must be a string, random, squeezenet or the path of a file, not "
                f"{self.features!r}."
            )
        if self.dropout_rate == 1:
            raise EngramError("dropout_rate must be below 1, or no feature is left.")
        for name in ("dropout_rate", "features"):
            is_given = getattr(self, name) != getattr(MazeConfig, name)
            if is_given and self.observation != "features":
                raise EngramError(
                    f"{name} is for image features: set observation to features, or leave it out."
                )
        if self.observation == "features" and (self.trap or self.is_dynamic):
            raise EngramError(
                "Image features need one maze without a trap: choose observation image or "
                "position, or neither trap nor dynamic."
            )
        if self.is_drawn:
            self._take_size_of_drawing()
        elif self.maze not in (None, "sample", "random", "dynamic"):
            raise EngramError(
                f"There is no maze {self.maze!r}: choose sample, random or dynamic, or draw one."
            )
        if self.maze == "sample":
            sample_layout(self.size)
        if self.loop_rate and not self.is_random:
            raise EngramError(
                "loop_rate is for random mazes: set maze to random or dynamic, or leave it out."
            )

    def _take_size_of_drawing(self) -> None:
        if self.size != MazeConfig.size:
            self.check_size_of_drawing(self.size)
        object.__setattr__(self, "size", len(self.layout))

    def check_size_of_drawing(self, size: int) -> None:
        """Raises if a size is given that the drawing does not have."""
        rows = len(self.layout)
        if size != rows:
            raise EngramError(
                f"The drawn maze has {rows} rows but size is {size}: set size to {rows} or leave "
                "it out."
            )

    @property
    def is_drawn(self) -> bool:
        """Whether the maze is given by a drawing."""
        return self.maze is not None and "+" in self.maze

    @property
    def is_random(self) -> bool:
        """Whether the maze is neither a sample nor drawn."""
        is_sample = self.maze == "sample" or (self.maze is None and self.size in SAMPLE_SIZES)
        return not (self.is_drawn or is_sample)

    @property
    def is_dynamic(self) -> bool:
        """Whether every episode has a new maze."""
        return self.maze == "dynamic"

    @cached_property
    def layout(self) -> Layout:
        """The layout of the one maze; of a dynamic one, that of the first random maze."""
        if self.maze is not None and self.is_drawn:
            return parse(self.maze)
        if self.is_random:
            return make_layout(self.size, self.maze_seed, self.loop_rate)
        return sample_layout(self.size)

    @property
    def step_reward(self) -> float:
        """Reward of a step to a free cell."""
        return -0.1 / self.size**2

    @property
    def goal(self) -> tuple[int, int]:
        return self.size - 1, self.size - 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return len(self.pixel_blocks), len(self.pixel_blocks), 3

    @cached_property
    def pixel_blocks(self) -> Int[np.ndarray, "P"]:
        """For each pixel of a row, its block: walls have even numbers, cells odd ones."""
        widths = [WALL_PIXELS, CELL_PIXELS] * self.size + [WALL_PIXELS]
        return np.repeat(np.arange(2 * self.size + 1), widths)


def draw_image(
    config: MazeConfig,
    layout: Bool[np.ndarray, "n n 4"],
    agent: tuple[int, int],
    trap: tuple[int, int] | None = None,
) -> UInt8[np.ndarray, "P P 3"]:
    """The image that an agent observes, [row, column, channel]."""
    size = config.size
    blocks = np.full((2 * size + 1, 2 * size + 1), WALL)  # [x, y]
    blocks[1::2, 1::2] = FREE
    blocks[1::2, 2:-1:2][layout[:, :-1, 1]] = FREE
    blocks[2:-1:2, 1::2][layout[:-1, :, 2]] = FREE
    marks = [(config.goal, GOAL), *([(trap, TRAP)] if trap else []), (agent, AGENT)]
    for (x, y), colour in marks:
        blocks[2 * x + 1, 2 * y + 1] = colour
    pixels = config.pixel_blocks
    return PALETTE[blocks[pixels[None, :], pixels[:, None]]]
