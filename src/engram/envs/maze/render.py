"""Pictures of mazes for people: what agents observe is `config.draw_image`.

All shapes are drawn larger than they will be and then reduced, which smooths their edges. What
does not change from picture to picture is drawn once.
"""

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFilter

from engram.envs.maze.layout import MOVES, Layout
from engram.errors import EngramError

TILE, WALL, START, WHITE = (240, 239, 234), (53, 60, 78), (176, 176, 176), (255, 255, 255)
AGENT, GOAL, TRAP = (229, 88, 39), (255, 194, 26), (104, 36, 96)

MAX_WIDTH = 640
"""of a maze in pixels, unless cells would be smaller than the smallest"""
MIN_CELL, MAX_CELL = 10, 80
"""width of a cell in pixels"""
MIN_TILE, MIN_FACE, MIN_MARKER = 32, 28, 18
"""widths of cells: smaller ones have no gaps, no eyes, or markers that are larger than they"""
MAX_DRAWN_WIDTH = 2_400
"""walls and paths are drawn four times larger, or less if they would be wider than this"""
MARKER_SCALE = 8
"""markers and tiles are drawn so many times larger"""

DIRECTIONS = {(dx, dy): i for i, (dx, dy) in enumerate(MOVES.tolist())}

Colour = tuple[int, int, int]
Shape = tuple[Sequence[tuple[float, float]], float, Colour]
"""a polygon, by how much it is wider on all sides, which makes its corners round, and a colour;
one corner makes a disc; the cell's middle is (0, 0) and its corners are (±0.5, ±0.5)"""


def draw_picture(
    layout: Layout,
    agent: tuple[int, int],
    trap: tuple[int, int] | None,
    path: Sequence[tuple[int, int]],
    values: Float[np.ndarray, "n n"] | None,
) -> UInt8[np.ndarray, "H W 3"]:
    """The maze with agent, goal, trap and path, each cell coloured by its value [x, y].

    Colours go from pale yellow for the lowest value to blue for the highest; a cell whose value
    is nan is grey. The path fades with age.
    """
    size = layout.shape[0]
    goal = size - 1, size - 1
    pixels = max(MIN_MARKER, cell_pixels(size))
    picture = _draw_floor(size, values)
    _paste(picture, _start(pixels), cell_centre((0, 0), size))
    _draw_path(picture, path, size)
    walls = _draw_walls(np.asarray(layout, bool).tobytes(), size)
    picture.paste(walls, (0, 0), walls)
    if trap is not None:
        _paste(picture, _trap(pixels), cell_centre(trap, size))
    if agent != goal:
        _paste(picture, _goal(pixels), cell_centre(goal, size))
    last_move = _direction(*path[-2:]) if len(path) > 1 else None
    x, y = cell_centre(agent, size)
    _paste(picture, _agent(pixels, last_move), (x, y))
    if agent == goal:  # which the agent would hide
        _paste(picture, _goal(pixels // 2), (x + pixels // 4, y - pixels // 4))
    return np.array(picture)


def cell_pixels(size: int) -> int:
    """Width of a cell of a maze with so many rows."""
    return min(MAX_CELL, max(MIN_CELL, MAX_WIDTH // size // 2 * 2))


def margin_pixels(size: int) -> int:
    """Width of the margin around the maze."""
    return max(6, cell_pixels(size) // 4)


def cell_centre(cell: tuple[int, int], size: int) -> tuple[int, int]:
    """The column and the row of the pixel in the middle of a cell."""
    pixels, margin = cell_pixels(size), margin_pixels(size)
    x, y = cell
    return margin + x * pixels + pixels // 2, margin + y * pixels + pixels // 2


def picture_pixels(size: int) -> int:
    """Width and height of the picture."""
    return 2 * margin_pixels(size) + size * cell_pixels(size)


# Cells


def value_colours(values: Float[np.ndarray, "n n"]) -> UInt8[np.ndarray, "n n 3"]:
    """Colours from the lowest to the highest finite value; that of a tile for other values."""
    is_finite = np.isfinite(values)
    known = values[is_finite]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    if high > low:
        levels = (np.where(is_finite, values, low) - low) / (high - low)
    else:
        levels = np.full(values.shape, 0.5)
    colours = _colour_map()[np.round(255 * levels).astype(int)]
    return np.where(is_finite[..., None], colours, np.array(TILE, np.uint8))


@cache
def _colour_map() -> UInt8[np.ndarray, "256 3"]:
    """Pale yellow, green, blue: lightness falls evenly in Ottosson's OKLab, so that differences
    look alike everywhere, to the colour-blind too."""
    level = np.linspace(0, 1, 256)
    lightness, chroma, hue = 0.965 - 0.44 * level, 0.045 + 0.065 * level, 1.75 + 2.45 * level
    a, b = chroma * np.cos(hue), chroma * np.sin(hue)
    cones = np.stack(
        [
            lightness + 0.3963377774 * a + 0.2158037573 * b,
            lightness - 0.1055613458 * a - 0.0638541728 * b,
            lightness - 0.0894841775 * a - 1.2914855480 * b,
        ]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip(to_rgb @ cones**3, 0, 1)
    rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * rgb.T).astype(np.uint8)


def _draw_floor(size: int, values: Float[np.ndarray, "n n"] | None) -> Image.Image:
    """The page with a tile for each cell."""
    pixels, margin = cell_pixels(size), margin_pixels(size)
    picture = _new_image("RGB", picture_pixels(size), WHITE)
    if values is None:
        picture.paste(TILE, (margin, margin), _tile_mask(size))
        return picture
    values = np.asarray(values, np.float64)
    if values.shape != (size, size):
        raise EngramError(
            f"Values of cells must have the shape {(size, size)}, not {values.shape}: give an "
            "array with a number for each cell [x, y], nan where there is none."
        )
    colours = Image.fromarray(np.ascontiguousarray(value_colours(values).transpose(1, 0, 2)))
    cells = colours.resize((size * pixels, size * pixels), Image.Resampling.NEAREST)
    picture.paste(cells, (margin, margin), _tile_mask(size))
    return picture


@lru_cache(maxsize=8)
def _tile_mask(size: int) -> Image.Image:
    """Where the tiles are: squares with round corners, a little smaller than the cells."""
    pixels = cell_pixels(size)
    wide = MARKER_SCALE * pixels
    if pixels < MIN_TILE:
        return _new_image("L", size * pixels, 255)
    gap = wide * 0.02
    tile = _new_image("L", wide)
    box = (gap, gap, wide - 1 - gap, wide - 1 - gap)
    ImageDraw.Draw(tile).rounded_rectangle(box, radius=wide * 0.1, fill=255)
    return Image.fromarray(np.tile(np.asarray(tile.reduce(MARKER_SCALE)), (size, size)))


# Walls and path


@lru_cache(maxsize=8)
def _draw_walls(layout_bytes: bytes, size: int) -> Image.Image:
    """The walls and their soft shadow, transparent elsewhere."""
    layout = np.frombuffer(layout_bytes, bool).reshape(size, size, 4)
    scale, pixels, margin = _scale(size), cell_pixels(size), margin_pixels(size)
    mask = _new_image("L", scale * picture_pixels(size))
    draw = ImageDraw.Draw(mask)
    half = scale * max(1, round(pixels * 0.045))

    def wall(x0: int, y0: int, x1: int, y1: int) -> None:
        left, top, right, bottom = (scale * (margin + i * pixels) for i in (x0, y0, x1, y1))
        box = (left - half, top - half, right + half - 1, bottom + half - 1)
        draw.rounded_rectangle(box, radius=half, fill=255)

    for x, y in np.argwhere(~layout[:, :, 2]).tolist():
        wall(x + 1, y, x + 1, y + 1)
    for x, y in np.argwhere(~layout[:, :, 1]).tolist():
        wall(x, y + 1, x + 1, y + 1)
    wall(0, 0, 0, size)
    wall(0, 0, size, 0)
    mask = mask.reduce(scale)
    walls = _new_image("RGBA", mask.width, (*WALL, 0))
    walls.putalpha(_shadow(mask, max(1.0, 0.035 * pixels)))
    walls.paste((*WALL, 255), (0, 0), mask)
    return walls


def _draw_path(picture: Image.Image, path: Sequence[tuple[int, int]], size: int) -> None:
    """Draws the path on a picture, with round turns and a white edge, fainter where it is older."""
    last_visits = {}  # of a cell by the same sides
    for i, cell in enumerate(path):
        others = [*path[max(i - 1, 0) : i], *path[i + 1 : i + 2]]
        sides = {_direction(cell, other) for other in others} - {None}
        last_visits[cell, frozenset(sides)] = i
    scale = _scale(size)
    pixels = scale * cell_pixels(size)
    for colour, strength, radius in ((WHITE, 0.6, 0.1), (AGENT, 1.0, 0.07)):
        mask = _new_image("L", scale * picture.width)
        draw = ImageDraw.Draw(mask)
        for (cell, sides), visit in sorted(last_visits.items(), key=lambda item: item[1]):
            age = len(path) - 1 - visit
            level = strength * (0.12 + 0.73 * 0.5 ** (age / (2 * size)))
            x, y = cell_centre(cell, size)
            centre = scale * x, scale * y
            _draw_piece(
                draw, centre, pixels // 2, sides, round(radius * pixels), round(255 * level)
            )
        picture.paste(colour, (0, 0), mask.reduce(scale))


def _draw_piece(
    draw: ImageDraw.ImageDraw,
    centre: tuple[int, int],
    half: int,
    sides: frozenset[int],
    radius: int,
    level: int,
) -> None:
    """Draws the path in one cell, from side to side or from one side to the centre."""
    x, y = centre
    width = 2 * radius + 1
    moves = MOVES[list(sides)]
    ends = [(x + half * i, y + half * j) for i, j in moves.tolist()]
    dx, dy = moves.sum(axis=0).tolist()
    if dx and dy:  # a quarter of a circle around the corner between both sides
        x, y, outer = x + half * dx, y + half * dy, half + radius
        middle = np.degrees(np.arctan2(-dy, -dx))
        box = (x - outer, y - outer, x + outer, y + outer)
        draw.arc(box, middle - 45, middle + 45, fill=level, width=width)
    elif len(ends) == 2:
        draw.line(ends, fill=level, width=width)
    elif ends:
        draw.line([*ends, centre], fill=level, width=width)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=level)


def _new_image(mode: str, width: int, colour: int | tuple[int, ...] = 0) -> Image.Image:
    """A square in one colour."""
    return Image.new(mode, (width, width), colour)


def _scale(size: int) -> int:
    """How many times larger shapes are drawn."""
    return max(2, min(4, MAX_DRAWN_WIDTH // picture_pixels(size)))


# Markers


def _direction(cell: tuple[int, int], other: tuple[int, int]) -> int | None:
    """The direction from a cell to the next; None if they are no neighbours."""
    return DIRECTIONS.get((other[0] - cell[0], other[1] - cell[1]))


def _paste(picture: Image.Image, marker: Image.Image, centre: tuple[int, int]) -> None:
    x, y = centre
    picture.paste(marker, (x - marker.width // 2, y - marker.height // 2), marker)


@cache
def _agent(pixels: int, direction: int | None) -> Image.Image:
    """A disc with eyes that look where it goes."""
    shapes: list[Shape] = [([(0, 0)], 0.27, AGENT)]
    if pixels >= MIN_FACE:
        dx, dy = (0, 0) if direction is None else MOVES[direction].tolist()
        for side in (-1, 1):
            x, y = 0.1 * side + 0.05 * dx, -0.03 + 0.05 * dy
            shapes.append(([(x, y)], 0.075, WHITE))
            shapes.append(([(x + 0.025 * dx, y + 0.025 * dy)], 0.042, WALL))
    return _draw_marker(pixels, shapes)


@cache
def _goal(pixels: int) -> Image.Image:
    """A star."""
    angles = np.pi * (np.arange(10) / 5 - 0.5)
    radii = np.where(np.arange(10) % 2, 0.155, 0.3)
    corners = list(zip(radii * np.cos(angles), radii * np.sin(angles) + 0.02, strict=True))
    return _draw_marker(pixels, [(corners, 0.03, GOAL)])


@cache
def _trap(pixels: int) -> Image.Image:
    """A ball with spikes."""
    angles = np.pi * (np.arange(8) / 4)
    spikes: list[Shape] = [
        ([(0, 0), (0.27 * np.cos(angle), 0.27 * np.sin(angle))], 0.03, TRAP) for angle in angles
    ]
    return _draw_marker(pixels, [*spikes, ([(0, 0)], 0.19, TRAP), ([(-0.06, -0.06)], 0.045, WHITE)])


@cache
def _start(pixels: int) -> Image.Image:
    """A small ring."""
    return _draw_marker(pixels, [([(0, 0)], 0.14, START), ([(0, 0)], 0.09, WHITE)], edge=0.0)


def _draw_marker(pixels: int, shapes: Sequence[Shape], edge: float = 0.035) -> Image.Image:
    """Shapes with a common white edge and a soft shadow, transparent around them."""
    wide = MARKER_SCALE * pixels
    outline = _new_image("L", wide)
    for corners, roundness, _ in shapes if edge else ():
        _draw_shape(outline, corners, roundness + edge, 255)
    marker = _new_image("RGBA", wide, (*WALL, 0))
    marker.putalpha(_shadow(outline, 0.03 * wide))
    marker.paste((*WHITE, 255), (0, 0), outline)
    for corners, roundness, colour in shapes:
        _draw_shape(marker, corners, roundness, colour)
    # Colours are multiplied by alpha meanwhile, or those of transparent pixels would be mixed in.
    return marker.convert("RGBa").reduce(MARKER_SCALE).convert("RGBA")


def _draw_shape(
    image: Image.Image,
    corners: Sequence[tuple[float, float]],
    roundness: float,
    colour: int | Colour,
) -> None:
    draw = ImageDraw.Draw(image)
    points = [((0.5 + x) * image.width, (0.5 + y) * image.height) for x, y in corners]
    radius = roundness * image.width
    if len(points) > 2:
        draw.polygon(points, fill=colour)
    if len(points) > 1:
        draw.line([*points, points[0]], fill=colour, width=round(2 * radius))
    for x, y in points:
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _shadow(mask: Image.Image, distance: float) -> Image.Image:
    """The soft shadow of a mask, below it."""
    shadow = _new_image("L", mask.width)
    shadow.paste(mask, (0, round(distance)))
    shadow = shadow.filter(ImageFilter.GaussianBlur(distance))
    return shadow.point([level // 4 for level in range(256)])
