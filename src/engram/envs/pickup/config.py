"""The arguments of the room, checked, and the numbers of MiniWorld 2.1.0 that define the task."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.config import Count, check_all
from engram.errors import EngramError, nearest_names

TURN_LEFT, TURN_RIGHT, FORWARD, BACK, PICKUP = range(5)
"""actions"""
NUM_ACTIONS = 5
MAX_EPISODE_STEPS = 400

# Lengths are in meters.
AGENT_RADIUS = 0.4
FORWARD_STEP = 0.15
TURNS_PER_CIRCLE = 24
"""a turn is 15 degrees"""
PICKUP_DISTANCE = 1.5 * AGENT_RADIUS
"""from the agent to the middle of the circle in which it picks up"""
PICKUP_RADIUS = 1.2 * AGENT_RADIUS
CARRY_DISTANCE = AGENT_RADIUS + 0.17
"""from the agent to the edge of an object that it carries, before a factor of 1.05"""
CARRY_FACTOR = 1.05
CARRY_CLEARANCE = 0.3
"""from the eye down to the top of an object that the agent carries"""

EYE_HEIGHT = 1.5
FIELD_OF_VIEW = math.radians(60)
"""vertical"""
FRAME_SHAPE = (60, 80, 3)
"""height, width and channels of an observation"""
WALL_HEIGHT = 2.74

BALL, BOX, KEY = range(3)
"""kinds of objects"""
RADII = (0.6376853, 0.9 * math.sqrt(2) / 2, 0.4290689)
"""of the circles by which balls, boxes and keys collide; MiniWorld takes a ball's from the corner
of the square around it"""
HEIGHTS = (0.9, 0.9, 0.35)
COLORS = ("blue", "green", "grey", "purple", "red", "yellow")
RGB = np.array(
    [(0, 0, 1), (0, 1, 0), (0.39, 0.39, 0.39), (0.44, 0.15, 0.76), (1, 0, 0), (1, 1, 0)],
    np.float32,
)
"""of COLORS, in [0, 1]"""

SIZES = (5, 50)
"""smallest and largest side of a room"""
MAX_OBJECTS = 30
MAX_CROWDING = 0.5
"""largest share of the floor that objects may keep others from"""
MAX_FAILURE = 1e-9
"""largest probability that no random place of an object is free"""


@dataclass(frozen=True)
class PickupConfig:
    """The arguments of `engram/Pickup-v0`."""

    size: int = 12
    """side of the square room in meters"""
    num_objs: Count = 5
    """objects to pick up"""

    def __post_init__(self):
        check_all(self)
        low, high = SIZES
        if isinstance(self.size, bool) or not isinstance(self.size, int):
            raise EngramError(f"size must be a whole number, not {self.size!r}.")
        if not low <= self.size <= high:
            raise EngramError(f"A room cannot have size={self.size}: choose from {low} to {high}.")
        if self.num_objs > MAX_OBJECTS:
            raise EngramError(
                f"A room cannot have num_objs={self.num_objs}: choose at most {MAX_OBJECTS}."
            )
        if self.num_objs > max_objects(self.size):
            raise EngramError(
                f"A room of size {self.size} is too crowded with num_objs={self.num_objs} to place "
                f"them at random: choose at most {max_objects(self.size)}, or a larger size."
            )

    @property
    def num_tries(self) -> int:
        """Random places that are drawn for an object, of which the first free one is taken."""
        crowding = self.num_objs / _objects_that_fill(self.size)
        return max(2, math.ceil(math.log(MAX_FAILURE) / math.log(crowding)))


def make_config(arguments: Mapping[str, Any]) -> PickupConfig:
    """The configuration of arguments by name."""
    names = PickupConfig.__dataclass_fields__
    if unknown := [name for name in arguments if name not in names]:
        raise EngramError(
            f"A room has no argument {unknown[0]!r}.{nearest_names(str(unknown[0]), names)}"
        )
    return PickupConfig(**arguments)


def max_objects(size: int) -> int:
    """The most objects of which random places can be found quickly."""
    return int(MAX_CROWDING * _objects_that_fill(size))


def _objects_that_fill(size: int) -> float:
    """How many of the largest objects would keep others from the whole floor."""
    radius = max(RADII)
    return (size - 2 * radius) ** 2 / (math.pi * (2 * radius) ** 2)
