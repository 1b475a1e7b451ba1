"""Pictures of mazes: markers, walls, values and the path are where they must be."""

import sys

import gymnasium as gym
import numpy as np
import pytest

from engram.envs.maze import gym_env, render
from engram.envs.maze.layout import make_layout, sample_layout
from engram.envs.maze.render import draw_picture, value_colours
from engram.envs.window import Window
from engram.errors import EngramError
from engram.paper.maze_animation import pictures

SOUTH, EAST = 1, 2
CORNER = (0.28, 0.28)
"""of a cell, beside its marker and the path, in widths of a cell from the centre"""


def draw(layout, agent=(0, 0), trap=None, path=(), values=None):
    return draw_picture(layout, agent, trap, path, values)


def pixel(picture, size, cell, offset=(0.0, 0.0)):
    """The colour at an offset from a cell's centre, in widths of a cell."""
    width = render.cell_pixels(size)
    column, row = render.cell_centre(cell, size)
    return tuple(picture[row + round(width * offset[1]), column + round(width * offset[0])])


def distance(colour, other):
    return np.linalg.norm(np.subtract(colour, other, dtype=float))


def test_agent_goal_and_trap_are_in_the_middle_of_their_cells():
    picture = draw(sample_layout(5), agent=(1, 3), trap=(4, 0))
    assert pixel(picture, 5, (1, 3)) == render.AGENT
    assert pixel(picture, 5, (4, 4)) == render.GOAL
    assert pixel(picture, 5, (4, 0)) == render.TRAP
    assert pixel(picture, 5, (2, 2)) == render.TILE


def test_the_goal_is_seen_even_if_the_agent_is_there():
    size = 5
    picture = draw(sample_layout(size), agent=(4, 4))
    x, y = render.cell_centre((4, 4), size)
    half = render.cell_pixels(size) // 2
    cell = picture[y - half : y + half, x - half : x + half].reshape(-1, 3)
    assert np.sum(np.all(cell == render.GOAL, axis=1)) > 50
    assert np.sum(np.all(cell == render.AGENT, axis=1)) > 50


@pytest.mark.parametrize("size", [2, 3, 9, 20, 37, 100])
def test_walls_are_where_the_layout_has_them(size):
    layout = make_layout(size, seed=1, loop_rate=0.1)
    picture = draw(layout)
    for x, y in np.argwhere(np.ones((size, size))).tolist():
        if not 0 < x + y < 2 * size - 3:  # there markers may be larger than cells
            continue
        is_wall = pixel(picture, size, (x, y), (0.5, 0)) == render.WALL
        assert is_wall != layout[x, y, EAST]
        is_wall = pixel(picture, size, (x, y), (0, 0.5)) == render.WALL
        assert is_wall != layout[x, y, SOUTH]
    for i in range(1, size):
        assert pixel(picture, size, (0, i), (-0.5, 0)) == render.WALL
        assert pixel(picture, size, (i, 0), (0, -0.5)) == render.WALL


def test_walls_of_another_maze_are_not_drawn_from_the_cache():
    layouts = [make_layout(4, seed) for seed in (0, 1, 0)]
    first, second, again = map(draw, layouts)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("size", [2, 3, 5, 10, 33, 100])
def test_pictures_have_a_bounded_size(size):
    picture = draw(make_layout(size, seed=0))
    assert picture.dtype == np.uint8
    assert picture.shape == (len(picture), len(picture), 3)
    assert 150 < len(picture) < 1_050
    assert picture.flags.writeable


def test_cells_are_coloured_by_their_values():
    values = np.linspace(-2, 1, 25).reshape(5, 5)
    values[2, 3] = np.nan
    picture = draw(sample_layout(5), values=values)
    colours = value_colours(values)
    for x, y in np.argwhere(np.ones((5, 5))):
        assert distance(pixel(picture, 5, (x, y), CORNER), colours[x, y]) < 3  # but for shadows
    assert tuple(colours[2, 3]) == render.TILE
    assert distance(colours[0, 0], colours[4, 4]) > 200


def test_higher_values_are_darker_in_even_steps():
    colours = value_colours(np.linspace(0, 1, 16).reshape(4, 4)).reshape(16, 3) / 255
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    lightness = 116 * np.cbrt(luminance) - 16  # CIE L*, of what the colour-blind see as well
    steps = -np.diff(lightness)
    assert steps.min() > 2
    assert steps.max() < 1.5 * steps.min()


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_equal_and_unknown_values_have_one_colour(value):
    colours = value_colours(np.full((3, 3), value)).reshape(9, 3)
    assert len(np.unique(colours, axis=0)) == 1
    assert (tuple(colours[0]) == render.TILE) == (not np.isfinite(value))


def test_values_of_another_shape_are_refused():
    with pytest.raises(EngramError, match=r"shape \(3, 3\), not \(2, 3\)"):
        draw(sample_layout(3), values=np.zeros((2, 3)))


def test_the_path_fades_with_age():
    path = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]
    picture = draw(sample_layout(3), agent=(2, 2), path=path)
    first, last = (pixel(picture, 3, cell, (0, -0.4)) for cell in [(0, 1), (0, 2)])
    assert distance(last, render.AGENT) < distance(first, render.AGENT) - 5
    assert distance(first, render.AGENT) < distance(render.TILE, render.AGENT) / 2
    assert pixel(picture, 3, (2, 0)) == render.TILE


def test_a_long_path_with_returns_is_drawn_at_its_last_visit():
    there_and_back = [(0, 0), (0, 1)] * 500
    picture = draw(sample_layout(3), agent=(0, 1), path=there_and_back)
    fresh = draw(sample_layout(3), agent=(0, 1), path=[(0, 0), (0, 1)])
    np.testing.assert_array_equal(picture, fresh)


@pytest.mark.parametrize("move", [(0, -1), (0, 1), (1, 0), (-1, 0)])
def test_eyes_look_where_the_agent_goes(move):
    pictures = [
        draw(sample_layout(3), agent=(1, 1), path=[(1 - x, 1 - y), (1, 1)])
        for x, y in (move, (-move[0], -move[1]))
    ]
    x, y = render.cell_centre((1, 1), 3)
    there, back = (np.argwhere(np.all(p == render.WALL, axis=-1)) - (y, x) for p in pictures)
    near = [pupils[np.abs(pupils).max(axis=1) < 20].mean(axis=0) for pupils in (there, back)]
    assert (near[0] - near[1]) @ (move[1], move[0]) > 4


def test_an_environment_renders_pictures_of_one_size():
    gym_env.register()
    env = gym.make(gym_env.ENV_ID, render_mode="rgb_array", size=4, maze="dynamic", trap=True)
    env.reset(seed=0)
    pictures = [env.render()]
    for action in (0, 1, 2, 3):
        env.step(action)
        pictures.append(env.render())
    env.unwrapped.values = np.eye(4)  # pyright: ignore
    pictures.append(env.render())
    assert len({picture.shape for picture in pictures}) == 1
    assert not np.array_equal(pictures[-1], pictures[-2])


# Windows


@pytest.fixture
def pygame(monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame.display.quit()
    yield pygame
    pygame.display.quit()


def test_a_window_shows_the_picture(pygame):
    picture = draw(sample_layout(3))
    window = Window("a maze")
    window.show(picture, fps=1_000)
    screen = pygame.display.get_surface()
    assert pygame.display.get_caption()[0] == "a maze"
    np.testing.assert_array_equal(pygame.surfarray.array3d(screen).transpose(1, 0, 2), picture)
    window.show(picture[:100, :50], fps=1_000)
    assert pygame.display.get_surface().get_size() == (50, 100)
    window.close()
    window.close()


def test_nothing_is_shown_once_the_user_has_closed_the_window(pygame):
    picture = draw(sample_layout(3))
    window = Window("a maze")
    window.show(picture, fps=1_000)
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    window.show(picture, fps=1_000)
    assert not window.is_open
    assert not pygame.display.get_init()
    window.show(picture, fps=1_000)
    assert window.wait_for_key() is None


def test_a_window_goes_on_if_another_is_closed(pygame):
    picture = draw(sample_layout(3))
    windows = [Window("a maze"), Window("another")]
    for window in windows:
        window.show(picture, fps=1_000)
    windows[1].close()
    windows[0].show(picture, fps=1_000)
    assert pygame.display.get_caption()[0] == "a maze"
    windows[0].close()


def test_an_environment_goes_on_without_its_window(pygame, monkeypatch):
    gym_env.register()
    monkeypatch.setitem(gym_env.MazeEnv.metadata, "render_fps", 1_000)
    env = gym.make(gym_env.ENV_ID, render_mode="human")
    env.reset(seed=0)
    env.step(1)
    assert pygame.display.get_surface() is not None
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    env.step(1)
    observation, *_ = env.step(2)
    np.testing.assert_array_equal(observation, [1, 2])
    env.close()


def test_a_window_without_pygame_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(EngramError, match="pip install pygame-ce"):
        Window("a maze")


def test_a_window_without_a_screen_names_the_remedy(pygame, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "none")
    with pytest.raises(EngramError, match="use a computer with a screen"):
        Window("a maze")


def test_the_animation_starts_in_the_first_cell_with_values_of_no_cell():
    first, second = pictures(((0, 2),))
    assert pixel(first, 5, (0, 0)) == render.AGENT
    assert pixel(first, 5, (4, 4)) == render.GOAL
    assert pixel(first, 5, (2, 2)) == render.TILE
    assert first.shape == second.shape
